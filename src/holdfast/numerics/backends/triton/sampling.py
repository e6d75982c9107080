"""Choosing tokens on the device, by the rule of `numerics/sampling.py`: nothing is sorted, nothing waits for the host.

The vocabulary is cut into chunks of one fixed width, a program for each chunk of each row; what the chunks found is put
together by a small kernel, always in the same order. So a row does not feel how many others there are. `compiled/choice.c`
writes down the noise.

    logits [n, V] -> _chunk_stats [n, chunks]: best value, its id, sum of exp      greedy, logsumexp: + _finish_greedy
                  -> edges.find [n]: what top-k and top-p keep                     choose: + these, and _finish_choice
                  -> _chunk_noisy [n, chunks]: best of z + noise, its id
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton import thresholds as edges
from holdfast.numerics.backends.triton.gumbel import gumbel, noise_key
from holdfast.numerics.backends.triton.logits import (
    CHUNK,
    INFINITY,
    NO_ID,
    best_of,
    clean,
    heat,
    is_finite,
    is_kept,
    load_best,
    load_clean,
    rank_of,
)
from holdfast.numerics.sampling import SamplingBatch

_LOWEST = tl.constexpr(-(1 << 63))


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits fp32 [n, V] -> the best ids int64 [n], ties to the lowest, and their logprobs fp32 [n]."""
    ids, logprobs, _ = _best(logits)
    return ids, logprobs


def logsumexp(logits: Tensor) -> Tensor:
    """logits fp32 [n, V] -> fp32 [n]; NaN counts as -inf."""
    return _best(logits)[2]


def choose(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits fp32 [n, V] -> token ids int64 [n]."""
    logits = _checked(logits)
    rows, vocabulary = logits.shape
    chosen = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return chosen
    chunks = triton.cdiv(vocabulary, CHUNK)
    best, best_ids, _ = _stats(logits)
    kept = edges.find(logits, batch, best, best_ids)
    noisy, noisy_ids = torch.empty_like(best), torch.empty_like(best_ids)
    sizes = {"V": vocabulary, "CHUNKS": chunks, "SLOTS": int(triton.next_power_of_2(chunks))}
    _chunk_noisy[(rows, chunks)](
        *(noisy, noisy_ids, logits, best, best_ids, kept),
        *(batch.temperature, batch.min_p, batch.seeds, batch.positions),
        **sizes, CHUNK=CHUNK, num_warps=8,
    )  # fmt: skip
    _finish_choice[(rows,)](
        *(chosen, noisy, noisy_ids, best, best_ids, batch.temperature), **sizes, num_warps=1
    )
    return chosen


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best: values fp32 [n, k] in descending order and ids int64 [n, k], ties to the lowest id."""
    logits = _checked(logits)
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    values = torch.empty((rows, k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, k), dtype=torch.int64, device=logits.device)
    if rows and k:
        chunks = triton.cdiv(vocabulary, CHUNK)
        marks = torch.empty((rows, chunks, k), dtype=torch.int64, device=logits.device)
        _chunk_top[(rows, chunks)](marks, logits, V=vocabulary, CHUNKS=chunks, K=k, CHUNK=CHUNK, num_warps=8)
        slots = int(triton.next_power_of_2(chunks * k))
        _finish_top[(rows,)](
            values, ids, marks, logits, V=vocabulary, FOUND=chunks * k, K=k, SLOTS=slots, num_warps=4
        )
    return values, ids


def _best(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, logprobs and log-sum-exp of the best of each row."""
    logits = _checked(logits)
    rows, vocabulary = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    totals = torch.empty_like(logprobs)
    if rows:
        chunks = triton.cdiv(vocabulary, CHUNK)
        _finish_greedy[(rows,)](
            *(ids, logprobs, totals, *_stats(logits)),
            CHUNKS=chunks, SLOTS=int(triton.next_power_of_2(chunks)), num_warps=1,
        )  # fmt: skip
    return ids, logprobs, totals


def _stats(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, CHUNK)
    best = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    sums = torch.empty_like(best)
    _chunk_stats[(rows, chunks)](
        best, ids, sums, logits, V=vocabulary, CHUNKS=chunks, CHUNK=CHUNK, num_warps=8
    )
    return best, ids, sums


def _checked(logits: Tensor) -> Tensor:
    """Contiguous and aligned: for another alignment other code would be compiled, which may add in another order."""
    assert logits.dtype is torch.float32 and logits.dim() == 2 and 0 < logits.shape[1] < NO_ID.value
    logits = logits.contiguous()
    return logits if logits.data_ptr() % 16 == 0 else logits.clone()


@triton.jit
def _chunk_stats(best, best_ids, sums, logits, V: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(0), tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    x = load_clean(logits, row, column, V)
    top, first = best_of(x, column)
    base = tl.where(is_finite(top), top, 0.0)
    at = row * CHUNKS + chunk
    tl.store(best + at, top)
    tl.store(best_ids + at, first)
    tl.store(sums + at, tl.sum(tl.exp(x - base), 0))


@triton.jit
def _finish_greedy(
    ids, logprobs, totals, best, best_ids, sums, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    top, first = load_best(best, best_ids, row, CHUNKS, SLOTS)
    slot = tl.arange(0, SLOTS)
    values = tl.load(best + row * CHUNKS + slot, mask=slot < CHUNKS, other=-INFINITY)
    masses = tl.load(sums + row * CHUNKS + slot, mask=slot < CHUNKS, other=0.0)
    base = tl.where(is_finite(top), top, 0.0)
    whole = tl.sum(tl.where(values > -INFINITY, masses * tl.exp(values - base), 0.0), 0)
    total = tl.where(is_finite(top), top + tl.log(whole), top)
    tl.store(ids + row, first.to(tl.int64))
    tl.store(totals + row, total)
    tl.store(logprobs + row, top - total)


@triton.jit
def _chunk_noisy(
    noisy, noisy_ids, logits, best, best_ids, limits, temperatures, min_ps, seeds, positions,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        top, _ = load_best(best, best_ids, row, CHUNKS, SLOTS)
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        z = heat(load_clean(logits, row, column, V), temperature)
        edge, last = tl.load(limits + row * 2), tl.load(limits + row * 2 + 1)
        kept = is_kept(rank_of(z), column, edge, last) & (column < V) & (z > -INFINITY)
        kept = kept & (tl.exp(z - heat(top, temperature)) >= tl.load(min_ps + row))
        key = noise_key(tl.load(seeds + row), tl.load(positions + row))
        found, first = best_of(tl.where(kept, z + gumbel(key, column), -INFINITY), column)
        tl.store(noisy + row * CHUNKS + chunk, found)
        tl.store(noisy_ids + row * CHUNKS + chunk, first)


@triton.jit
def _finish_choice(
    chosen, noisy, noisy_ids, best, best_ids, temperatures, V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    top, choice = load_best(best, best_ids, row, CHUNKS, SLOTS)
    hot = temperature > 0.0
    if hot & is_finite(heat(top, tl.where(hot, temperature, 1.0))):
        _, choice = load_best(noisy, noisy_ids, row, CHUNKS, SLOTS)
    tl.store(chosen + row, choice.to(tl.int64))


@triton.jit
def _mark(x, column, mask):
    """A number for each id that is larger for a better one: value first, then the lower id."""
    return tl.where(mask, (rank_of(x).to(tl.int64) << 32) + (NO_ID - column), _LOWEST)


@triton.jit
def _chunk_top(marks, logits, V: tl.constexpr, CHUNKS: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(0), tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    mark = _mark(load_clean(logits, row, column, V), column, column < V)
    for place in range(K):
        found = tl.max(mark, 0)
        tl.store(marks + (row * CHUNKS + chunk).to(tl.int64) * K + place, found)
        mark = tl.where(mark == found, _LOWEST, mark)


@triton.jit
def _finish_top(
    values, ids, marks, logits, V: tl.constexpr, FOUND: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    mark = tl.load(marks + row * FOUND + slot, mask=slot < FOUND, other=_LOWEST)
    for place in range(K):
        found = tl.max(mark, 0)
        column = NO_ID - (found & 0xFFFFFFFF)
        tl.store(ids + row * K + place, column)
        tl.store(values + row * K + place, clean(tl.load(logits + row * V + column)))
        mark = tl.where(mark == found, _LOWEST, mark)
