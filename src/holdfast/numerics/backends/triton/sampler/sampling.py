"""Sampling on the device, by the rule of `numerics/sampling.py`. Nothing is sorted and nothing
waits for the host.

The vocabulary is divided into chunks of one fixed width, with one program per chunk of each row. A
small kernel combines the results of the chunks, always in the same order. So a row does not depend
on the number of rows. `backends/c/sampling.c` defines the Gumbel noise.

    logits [n, V] -> _chunk_stats [n, chunks]: max, its id, sum of exp      greedy, logsumexp: then _finish_greedy
                  -> _chunk_gumbel [n, chunks]: max of z + noise, its id    sample: rows without top-k
                  -> accept_draws [n]: rows whose token top-p keeps         both twice
                  -> find_thresholds [n]: the top-k and top-p thresholds    the other rows: then
                  -> _chunk_gumbel [n, chunks]                              over the kept tokens, and _finish_sample
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.core.step_plan import NO_TOKEN
from holdfast.numerics.backends.triton.sampler.early_draws import accept_draws
from holdfast.numerics.backends.triton.sampler.gumbel import gumbel, gumbel_bound, noise_key
from holdfast.numerics.backends.triton.sampler.logits import (
    CHUNK,
    INFINITY,
    LOWEST_RANK,
    NO_ID,
    argmax_of,
    clean,
    is_finite,
    is_kept,
    load_argmax,
    load_clean,
    rank_of,
    scale_logits,
)
from holdfast.numerics.backends.triton.sampler.thresholds import find_thresholds
from holdfast.numerics.sampling import SamplingBatch

_LOWEST = tl.constexpr(-(1 << 63))
_NO_TOKEN = tl.constexpr(NO_TOKEN)
# Which rows are drawn: with the tokens that `accept_draws` left, or that the limits keep.
_WITHOUT_TOP_K, _WITH_TOP_P, _WITH_LIMITS = (tl.constexpr(number) for number in range(3))


def sample_greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits fp32 [n, V] -> the argmax int64 [n], ties to the lowest id, and its logprob fp32 [n]."""
    ids, logprobs, _ = _greedy_stats(logits)
    return ids, logprobs


def logsumexp(logits: Tensor) -> Tensor:
    """logits fp32 [n, V] -> fp32 [n]; NaN counts as -inf."""
    return _greedy_stats(logits)[2]


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits fp32 [n, V] -> token ids int64 [n]."""
    logits = _aligned(logits)
    rows, vocabulary = logits.shape
    token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return token_ids
    chunks = triton.cdiv(vocabulary, CHUNK)
    best, best_ids, _ = _chunk_argmax(logits)
    noisy, noisy_ids = best.new_empty(best.shape), best_ids.new_empty(best.shape)
    sizes = {"V": vocabulary, "CHUNKS": chunks, "SLOTS": int(triton.next_power_of_2(chunks))}

    def draw(rows_drawn: int, top_p: Tensor, kept: Tensor) -> None:
        _chunk_gumbel[(rows, chunks)](
            *(noisy, noisy_ids, logits, best, best_ids, kept),
            *(batch.temperature, batch.top_k, top_p, batch.min_p, batch.seeds, batch.positions),
            **sizes, CHUNK=CHUNK, ROWS=rows_drawn, num_warps=8,
        )  # fmt: skip

    top_p, kept = batch.top_p, best_ids  # kept is not read yet
    for rows_drawn in (_WITHOUT_TOP_K, _WITH_TOP_P):
        draw(rows_drawn.value, top_p, kept)
        top_p, kept = accept_draws(logits, batch, top_p, best, best_ids, noisy, noisy_ids)
    draw(_WITH_LIMITS.value, top_p, find_thresholds(logits, batch, best, best_ids, top_p))
    _finish_sample[(rows,)](
        *(token_ids, noisy, noisy_ids, best, best_ids, batch.temperature), **sizes, num_warps=1
    )
    return token_ids


def topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits: values fp32 [n, k] in descending order and ids int64 [n, k], ties to
    the lowest id."""
    logits = _aligned(logits)
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    values = torch.empty((rows, k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, k), dtype=torch.int64, device=logits.device)
    if rows and k:
        chunks = triton.cdiv(vocabulary, CHUNK)
        keys = torch.empty((rows, chunks, k), dtype=torch.int64, device=logits.device)
        best, _, _ = _chunk_argmax(logits)
        chunk_slots, k_slots = int(triton.next_power_of_2(chunks)), int(triton.next_power_of_2(k))
        _chunk_topk[(rows, chunks)](
            *(keys, logits, best), V=vocabulary, CHUNKS=chunks, SLOTS=chunk_slots,
            K=k, K_SLOTS=k_slots, CHUNK=CHUNK, num_warps=8,
        )  # fmt: skip
        slots = int(triton.next_power_of_2(chunks * k))
        _finish_topk[(rows,)](
            values, ids, keys, logits, V=vocabulary, FOUND=chunks * k, K=k, SLOTS=slots, num_warps=4
        )
    return values, ids


def _greedy_stats(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the argmax of each row, its logprob, and the row's log-sum-exp."""
    logits = _aligned(logits)
    rows, vocabulary = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    logsumexps = logprobs.new_empty(rows)
    if rows:
        chunks = triton.cdiv(vocabulary, CHUNK)
        _finish_greedy[(rows,)](
            *(ids, logprobs, logsumexps, *_chunk_argmax(logits)),
            CHUNKS=chunks, SLOTS=int(triton.next_power_of_2(chunks)), num_warps=1,
        )  # fmt: skip
    return ids, logprobs, logsumexps


def _chunk_argmax(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, CHUNK)
    best = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    sums = best.new_empty(best.shape)
    _chunk_stats[(rows, chunks)](
        best, ids, sums, logits, V=vocabulary, CHUNKS=chunks, CHUNK=CHUNK, num_warps=8
    )
    return best, ids, sums


def _aligned(logits: Tensor) -> Tensor:
    """Contiguous and aligned logits.

    For another alignment Triton compiles other code, which may add in another order.
    """
    assert logits.dtype is torch.float32 and logits.dim() == 2 and 0 < logits.shape[1] < NO_ID.value
    logits = logits.contiguous()
    return logits if logits.data_ptr() % 16 == 0 else logits.clone()


@triton.jit
def _chunk_stats(best, best_ids, sums, logits, V: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(0), tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    x = load_clean(logits, row, column, V)
    top, first = argmax_of(x, column)
    base = tl.where(is_finite(top), top, 0.0)
    at = row * CHUNKS + chunk
    tl.store(best + at, top)
    tl.store(best_ids + at, first)
    tl.store(sums + at, tl.sum(tl.exp(x - base), 0))


@triton.jit
def _finish_greedy(
    ids, logprobs, logsumexps, best, best_ids, sums, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    top, first = load_argmax(best, best_ids, row, CHUNKS, SLOTS)
    slot = tl.arange(0, SLOTS)
    values = tl.load(best + row * CHUNKS + slot, mask=slot < CHUNKS, other=-INFINITY)
    chunk_sums = tl.load(sums + row * CHUNKS + slot, mask=slot < CHUNKS, other=0.0)
    base = tl.where(is_finite(top), top, 0.0)
    total_sum = tl.sum(tl.where(values > -INFINITY, chunk_sums * tl.exp(values - base), 0.0), 0)
    logsumexp_of_row = tl.where(is_finite(top), top + tl.log(total_sum), top)
    tl.store(ids + row, tl.where(top > -INFINITY, first, _NO_TOKEN).to(tl.int64))
    tl.store(logsumexps + row, logsumexp_of_row)
    tl.store(logprobs + row, top - logsumexp_of_row)


@triton.jit
def _chunk_gumbel(
    noisy, noisy_ids, logits, best, best_ids, kept_limits,
    temperatures, top_ks, top_ps, min_ps, seeds, positions,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The argmax of z + noise over the kept tokens of a chunk, for some rows. The noise itself is
    computed only for tokens whose upper bound reaches the best value found so far."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, top_k = tl.load(temperatures + row), tl.load(top_ks + row)
    is_drawn = (top_k > 0) & (top_k < V)
    if ROWS == _WITHOUT_TOP_K:
        is_drawn = not is_drawn
    elif ROWS == _WITH_TOP_P:
        is_drawn = (not is_drawn) & (tl.load(top_ps + row) < 1.0)
    else:
        is_drawn = is_drawn | (tl.load(top_ps + row) < 1.0)
    if (temperature > 0.0) & is_drawn:
        top, _ = load_argmax(best, best_ids, row, CHUNKS, SLOTS)
        max_z, min_p = scale_logits(top, temperature), tl.load(min_ps + row)
        threshold, last = tl.full([], LOWEST_RANK, tl.int32), tl.full([], NO_ID, tl.int32)
        if ROWS != _WITHOUT_TOP_K:
            threshold, last = tl.load(kept_limits + row * 2), tl.load(kept_limits + row * 2 + 1)
        chunk_max_z = scale_logits(tl.load(best + row * CHUNKS + chunk), temperature)
        found, found_id = -INFINITY + tl.zeros_like(max_z), tl.full([], NO_ID, tl.int32)
        if (rank_of(chunk_max_z) >= threshold) & (tl.exp(chunk_max_z - max_z) >= min_p):
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            z = scale_logits(load_clean(logits, row, column, V), temperature)
            kept = is_kept(rank_of(z), column, threshold, last) & (column < V) & (z > -INFINITY)
            kept = kept & (tl.exp(z - max_z) >= min_p)
            key = noise_key(tl.load(seeds + row), tl.load(positions + row))
            bound = tl.where(kept, z + gumbel_bound(key, column), -INFINITY)
            highest, token_id = argmax_of(bound, column)
            while (highest > -INFINITY) & (highest >= found):
                x = clean(tl.load(logits + row.to(tl.int64) * V + token_id))
                value = scale_logits(x, temperature) + gumbel(key, token_id)
                is_better = (value > found) | ((value == found) & (token_id < found_id))
                found, found_id = tl.where(is_better, value, found), tl.where(is_better, token_id, found_id)
                bound = tl.where(column == token_id, -INFINITY, bound)
                highest, token_id = argmax_of(bound, column)
        tl.store(noisy + row * CHUNKS + chunk, found)
        tl.store(noisy_ids + row * CHUNKS + chunk, found_id)


@triton.jit
def _finish_sample(
    token_ids, noisy, noisy_ids, best, best_ids, temperatures, V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    top, token_id = load_argmax(best, best_ids, row, CHUNKS, SLOTS)
    is_sampled = temperature > 0.0
    if is_sampled & is_finite(scale_logits(top, tl.where(is_sampled, temperature, 1.0))):
        top, token_id = load_argmax(noisy, noisy_ids, row, CHUNKS, SLOTS)
    tl.store(token_ids + row, tl.where(top > -INFINITY, token_id, _NO_TOKEN).to(tl.int64))


@triton.jit
def _sort_key(x, column, mask):
    """An int64 that orders tokens by value, then by the lower id."""
    return tl.where(mask, (rank_of(x).to(tl.int64) << 32) + (NO_ID - column), _LOWEST)


@triton.jit
def _chunk_topk(
    keys, logits, best, V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr,
    K: tl.constexpr, K_SLOTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The keys of a chunk's K largest tokens that may be among the row's K largest. Those are not
    below the K-th largest maximum of a chunk."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    slot = tl.arange(0, SLOTS)
    maxima = tl.load(best + row * CHUNKS + slot, mask=slot < CHUNKS, other=-INFINITY)
    num_larger = tl.sum((maxima[None, :] > maxima[:, None]).to(tl.int32), 1)
    limit = tl.min(tl.where(num_larger < K, maxima, INFINITY), 0)
    if SLOTS < K:
        limit = -INFINITY + tl.zeros_like(limit)
    lowest_key = rank_of(limit).to(tl.int64) << 32
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    key_of = _sort_key(load_clean(logits, row, column, V), column, column < V)
    offset = keys + (row * CHUNKS + chunk).to(tl.int64) * K
    found, num_found = tl.max(key_of, 0), tl.full([], 0, tl.int32)
    while (num_found < K) & (found >= lowest_key):
        tl.store(offset + num_found, found)
        num_found += 1
        key_of = tl.where(key_of == found, _LOWEST, key_of)
        found = tl.max(key_of, 0)
    place = tl.arange(0, K_SLOTS)
    rest = tl.full([K_SLOTS], _LOWEST, tl.int64)
    tl.store(offset + place, rest, mask=(place >= num_found) & (place < K))


@triton.jit
def _finish_topk(
    values, ids, keys, logits, V: tl.constexpr, FOUND: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    key_of = tl.load(keys + row * FOUND + slot, mask=slot < FOUND, other=_LOWEST)
    for rank in range(K):
        found = tl.max(key_of, 0)
        column = NO_ID - (found & 0xFFFFFFFF)
        tl.store(ids + row * K + rank, column)
        tl.store(values + row * K + rank, clean(tl.load(logits + row * V + column)))
        key_of = tl.where(key_of == found, _LOWEST, key_of)
