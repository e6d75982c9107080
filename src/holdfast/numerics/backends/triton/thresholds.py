"""Top-k and top-p thresholds of a row: the rank of the lowest token that is kept, and the last id
kept at that rank.

    _chunk_histogram [n, chunks, levels]   tokens within some distances of the largest z: their number and their mass
    _compact         [n, chunks]           copy the tokens of the nearest level that holds the kept set, in order of id
    _radix_select    [n]                   find the threshold among them, by the digits of the ranks, four bits at a time

Rows without top-k and top-p return at once. If there are too many candidates to copy, the last
kernel reads the logits themselves. A mass is an integer multiple of 2^-36 of the largest one, so
sums do not depend on their order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.logits import (
    CHUNK,
    NO_ID,
    clean,
    is_finite,
    is_kept,
    load_argmax,
    load_clean,
    rank_of,
    scale_logits,
)
from holdfast.numerics.sampling import SamplingBatch

_MAX_CANDIDATES = 16384  # candidates copied for a row
_BLOCK = 1024  # candidates per step of the selection
_LEVELS = tl.constexpr(16)
_MASS_UNIT = tl.constexpr(2.0**36)
_COUNT_SHIFT = tl.constexpr(50)  # a histogram entry: count << 50 | mass; both fit for one chunk
_ONE_TOKEN = tl.constexpr(1 << 50)
_LOWEST_RANK = tl.constexpr(-(1 << 31))


def find_thresholds(logits: Tensor, batch: SamplingBatch, best: Tensor, best_ids: Tensor) -> Tensor:
    """logits fp32 [n, V] and the argmax of each chunk [n, chunks] -> int32 [n, 2]: threshold rank
    and last id."""
    rows, vocabulary = logits.shape
    chunks, max_candidates = best.shape[1], min(_MAX_CANDIDATES, vocabulary)
    device = logits.device
    thresholds = torch.empty((rows, 2), dtype=torch.int32, device=device)
    histogram = torch.empty((rows, chunks, _LEVELS.value), dtype=torch.int64, device=device)
    candidates = torch.empty((rows, max_candidates), dtype=torch.float32, device=device)
    candidate_ids = torch.empty((rows, max_candidates), dtype=torch.int32, device=device)
    # number of candidates and total mass of each row
    candidate_stats = torch.empty((rows, 2), dtype=torch.int64, device=device)
    limits = (batch.temperature, batch.top_k, batch.top_p)
    sizes = {"V": vocabulary, "CHUNKS": chunks, "SLOTS": int(triton.next_power_of_2(chunks))}
    _chunk_histogram[(rows, chunks)](
        histogram, logits, best, best_ids, *limits, **sizes, CHUNK=CHUNK, num_warps=8
    )
    _compact[(rows, chunks)](
        *(candidates, candidate_ids, candidate_stats, histogram, logits, best, best_ids, *limits),
        **sizes,
        CHUNK=CHUNK,
        MAX_CANDIDATES=max_candidates,
        num_warps=8,
    )
    _radix_select[(rows,)](
        *(thresholds, candidates, candidate_ids, candidate_stats, logits, best, best_ids, *limits),
        **sizes,
        BLOCK=_BLOCK,
        MAX_CANDIDATES=max_candidates,
        num_warps=8,
    )
    return thresholds


@triton.jit
def _limits(
    row, best, best_ids, temperatures, top_ks, top_ps, V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """A row's temperature, largest z, k and p. k is 0 and p is 1 if they do not limit the row."""
    temperature, top_k, top_p = tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row)
    top, _ = load_argmax(best, best_ids, row, CHUNKS, SLOTS)
    is_sampled_row = temperature > 0.0
    temperature = tl.where(is_sampled_row, temperature, 1.0)
    max_z = scale_logits(top, temperature)
    has_limits = is_sampled_row & is_finite(max_z)
    top_k = tl.where(has_limits & (top_k < V), tl.maximum(top_k, 0), 0)
    return temperature, max_z, top_k, tl.where(has_limits & (top_p < 1.0), top_p, 1.0)


@triton.jit
def _level_distance(level):
    """How far below the largest z a level reaches: 1, 2, ..

    8, then by factors of 2^0.36, the last without limit.
    """
    outer = 8.0 * tl.exp2(0.36 * (level - 7).to(tl.float32))
    within = (level + 1).to(tl.float32)
    return tl.where(level < 8, within, tl.where(level < _LEVELS - 1, outer, float("inf")))


@triton.jit
def _mass(z, max_z):
    return (tl.exp(z - max_z) * _MASS_UNIT).to(tl.int64)


@triton.jit
def _mass_needed(top_p, total_mass):
    return tl.maximum(tl.ceil(top_p.to(tl.float64) * total_mass.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _chunk_histogram(
    histogram, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, max_z, top_k, top_p = _limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    if (top_k > 0) | (top_p < 1.0):
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        z = scale_logits(load_clean(logits, row, column, V), temperature)
        entry = tl.where(column < V, _mass(z, max_z) + _ONE_TOKEN, 0)
        offset = histogram + (row * CHUNKS + chunk).to(tl.int64) * _LEVELS
        for step in range(_LEVELS):
            level = tl.full([], 0, tl.int32) + step
            tl.store(offset + level, tl.sum(tl.where(max_z - z <= _level_distance(level), entry, 0), 0))


@triton.jit
def _compact(
    candidates, candidate_ids, candidate_stats, histogram, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, max_z, top_k, top_p = _limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    if (top_k > 0) | (top_p < 1.0):
        slot, level = tl.arange(0, SLOTS)[:, None], tl.arange(0, _LEVELS)[None, :]
        offset = (row * CHUNKS + slot).to(tl.int64) * _LEVELS + level
        entries = tl.load(histogram + offset, mask=slot < CHUNKS, other=0)  # [SLOTS, LEVELS]
        counts, masses = entries >> _COUNT_SHIFT, entries & (_ONE_TOKEN - 1)
        total_mass = tl.sum(tl.sum(tl.where(level == _LEVELS - 1, masses, 0), 1), 0)
        by_count, by_mass = tl.sum(counts, 0) >= top_k, tl.sum(masses, 0) >= _mass_needed(top_p, total_mass)
        enough = tl.where(top_k > 0, by_count, by_mass)  # [LEVELS]
        selected = tl.minimum(_LEVELS - tl.sum(enough.to(tl.int32), 0), _LEVELS - 1)
        counts_of_level = tl.where(level == selected, counts, 0)
        num_before = tl.sum(tl.sum(tl.where(slot < chunk, counts_of_level, 0), 1), 0)
        count = tl.sum(tl.sum(counts_of_level, 1), 0)
        if count <= MAX_CANDIDATES:
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            x = load_clean(logits, row, column, V)
            within = (column < V) & (max_z - scale_logits(x, temperature) <= _level_distance(selected))
            place = row.to(tl.int64) * MAX_CANDIDATES + num_before + tl.cumsum(within.to(tl.int32), 0) - 1
            tl.store(candidates + place, x, mask=within)
            tl.store(candidate_ids + place, column, mask=within)
        if chunk == 0:
            tl.store(candidate_stats + row * 2, count)
            tl.store(candidate_stats + row * 2 + 1, total_mass)


@triton.jit
def _weigh_block(
    source, ids, is_compacted, start, count, temperature, max_z, threshold, last, BLOCK: tl.constexpr, BY_MASS: tl.constexpr
):  # fmt: skip
    """Ids, ranks and weights of a block of candidates.

    A weight is 1, or the mass; 0 for tokens that are not kept.
    """
    offset = start + tl.arange(0, BLOCK)
    real = offset < count
    z = scale_logits(clean(tl.load(source + offset, mask=real, other=0.0)), temperature)
    column = tl.where(is_compacted, tl.load(ids + offset, mask=real & is_compacted, other=0), offset)
    rank = rank_of(z)
    weight = tl.full([BLOCK], 1, tl.int64)
    if BY_MASS:
        weight = _mass(z, max_z)
    return column, rank, tl.where(real & is_kept(rank, column, threshold, last), weight, 0)


@triton.jit
def _select(
    source, ids, is_compacted, count, temperature, max_z, threshold, last, need, BLOCK: tl.constexpr, BY_MASS: tl.constexpr
):  # fmt: skip
    """The smallest set of the best kept tokens with a weight of at least `need`: its threshold and
    last id."""
    digit = tl.arange(0, 16)[None, :]
    rank_found = tl.full([], _LOWEST_RANK, tl.int64)  # tokens of this rank or above weigh enough
    above = tl.full([], 0, tl.int64)  # weight of all tokens above it
    for step in range(8):
        unit = tl.full([], 1, tl.int64) << (28 - 4 * step)
        digit_ranks = (rank_found + digit * unit).to(tl.int32)  # [1, 16]
        sums = tl.zeros([BLOCK, 16], tl.int64)
        for start in range(0, count, BLOCK):
            _, rank, weight = _weigh_block(
                source, ids, is_compacted, start, count, temperature, max_z, threshold, last, BLOCK, BY_MASS
            )
            sums += tl.where(rank[:, None] >= digit_ranks, weight[:, None], 0)
        total = tl.sum(sums, 0)[None, :]  # [1, 16], descending
        selected = tl.sum(tl.sum(((digit > 0) & (total >= need)).to(tl.int64), 1), 0)
        above_digit = tl.sum(tl.sum(tl.where(digit == selected + 1, total, 0), 1), 0)
        above = tl.where(selected < 15, above_digit, above)
        rank_found += selected * unit
    remaining = need - above  # still needed from the tokens at the threshold
    threshold_found = rank_found.to(tl.int32)
    last_found = tl.full([], NO_ID, tl.int32)
    for start in range(0, count, BLOCK):
        column, rank, weight = _weigh_block(
            source, ids, is_compacted, start, count, temperature, max_z, threshold, last, BLOCK, BY_MASS
        )
        weight = tl.where(rank == threshold_found, weight, 0)
        reached = (weight > 0) & (tl.cumsum(weight, 0) >= remaining)
        last_found = tl.minimum(last_found, tl.min(tl.where(reached, column, NO_ID), 0))
        remaining -= tl.sum(weight, 0)
    return threshold_found, last_found


@triton.jit
def _radix_select(
    thresholds, candidates, candidate_ids, candidate_stats, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    temperature, max_z, top_k, top_p = _limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    threshold = tl.full([], _LOWEST_RANK, tl.int32)
    last = tl.full([], NO_ID, tl.int32)
    if (top_k > 0) | (top_p < 1.0):
        count = tl.load(candidate_stats + row * 2).to(tl.int32)
        total_mass = tl.load(candidate_stats + row * 2 + 1)
        is_compacted = count <= MAX_CANDIDATES
        source = logits + row.to(tl.int64) * V
        if is_compacted:
            source = candidates + row.to(tl.int64) * MAX_CANDIDATES
        count = tl.where(is_compacted, count, V)
        ids = candidate_ids + row.to(tl.int64) * MAX_CANDIDATES
        if top_k > 0:
            need = top_k.to(tl.int64)
            threshold, last = _select(
                source, ids, is_compacted, count, temperature, max_z, threshold, last, need, BLOCK, False
            )
            sums = tl.zeros([BLOCK], tl.int64)
            for start in range(0, count, BLOCK):
                _, _, weight = _weigh_block(
                    source, ids, is_compacted, start, count, temperature, max_z, threshold, last, BLOCK, True
                )
                sums += weight
            total_mass = tl.sum(sums, 0)
        if top_p < 1.0:
            need = _mass_needed(top_p, total_mass)
            threshold, last = _select(
                source, ids, is_compacted, count, temperature, max_z, threshold, last, need, BLOCK, True
            )
    tl.store(thresholds + row * 2, threshold)
    tl.store(thresholds + row * 2 + 1, last)
