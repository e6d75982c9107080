"""Top-k and top-p thresholds of a row: the rank of the lowest token that is kept, and the last id
kept at that rank.

The threshold lies in one bin of the values of z. Two histograms narrow the bin down, then its tokens
are copied and searched exactly.

    _chunk_histogram [n, chunks, levels]   the number and the mass of the tokens above some edges of z
    _choose_bin      [n]                   the bin that holds the threshold, and what lies above it
    _chunk_histogram, _choose_bin          the same within that bin, if it holds many tokens
    _compact         [n, chunks]           copy the tokens of the bin, in order of id
    _radix_select    [n]                   find the threshold among them, by the digits of the ranks, four bits at a time

Rows without top-k and top-p return at once. If a bin has too many tokens to copy, the last kernel
reads the logits themselves. A mass is an integer multiple of 2^-36 of the largest one, so sums do
not depend on their order, and the threshold does not depend on the bins.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.launch import INTERPRETED
from holdfast.numerics.backends.triton.sampler.logits import (
    CHUNK,
    INFINITY,
    LOWEST_RANK,
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

_MAX_CANDIDATES = 16384  # tokens of a bin that are copied
_MIN_REFINED = 2048  # bins with more tokens are divided again
_BLOCK = 1024  # candidates per step of the selection
_PART = CHUNK if INTERPRETED else 128  # token ids per step of a histogram; the interpreter is slow
_LEVELS = tl.constexpr(16)
_MASS_UNIT = tl.constexpr(2.0**36)
_COUNT_SHIFT = tl.constexpr(50)  # a histogram entry: count << 50 | mass; both fit for one chunk
_ONE_TOKEN = tl.constexpr(1 << 50)
_LOWEST_Z = tl.constexpr(-3.4028234663852886e38)  # the lowest finite number

# A row's bin: z in [low, high) are its tokens; the next histogram divides [low, split).
_LOW, _SPLIT, _HIGH, _NUM_EDGES = (tl.constexpr(place) for place in range(4))
# And its sums: the weight of the tokens above the bin, the number of tokens in it, the mass of the
# whole row, and k, which is 0 if it does not limit the row.
_ABOVE, _COUNT, _TOTAL_MASS, _TOP_K, _NUM_SUMS = (tl.constexpr(place) for place in range(5))


def find_thresholds(
    logits: Tensor, batch: SamplingBatch, best: Tensor, best_ids: Tensor, top_p: Tensor
) -> Tensor:
    """logits fp32 [n, V] and the argmax of each chunk [n, chunks] -> int32 [n, 2]: threshold rank
    and last id. top_p replaces the one of the batch."""
    rows, vocabulary = logits.shape
    chunks, device = best.shape[1], logits.device
    max_candidates = min(_MAX_CANDIDATES, vocabulary)
    thresholds = torch.empty((rows, 2), dtype=torch.int32, device=device)
    histogram = torch.empty((rows, chunks, _LEVELS.value), dtype=torch.int64, device=device)
    edges = torch.empty((rows, _NUM_EDGES.value), dtype=torch.float32, device=device)
    sums = torch.empty((rows, _NUM_SUMS.value), dtype=torch.int64, device=device)
    offsets = torch.empty((rows, chunks), dtype=torch.int32, device=device)
    candidates = torch.empty((rows, max_candidates), dtype=torch.float32, device=device)
    candidate_ids = torch.empty((rows, max_candidates), dtype=torch.int32, device=device)
    row_settings = (best, best_ids, batch.temperature, batch.top_k, top_p)
    sizes = {"V": vocabulary, "CHUNKS": chunks, "SLOTS": int(triton.next_power_of_2(chunks))}
    for is_first in (True, False):
        _chunk_histogram[(rows, chunks)](
            *(histogram, edges, sums, logits, *row_settings),
            **sizes, CHUNK=CHUNK, PART=_PART, MIN_REFINED=_MIN_REFINED, IS_FIRST=is_first, num_warps=4,
        )  # fmt: skip
        _choose_bin[(rows,)](
            *(edges, sums, offsets, histogram, *row_settings),
            **sizes, MIN_REFINED=_MIN_REFINED, IS_FIRST=is_first, num_warps=1,
        )  # fmt: skip
    _compact[(rows, chunks)](
        *(candidates, candidate_ids, edges, sums, offsets, logits, *row_settings),
        **sizes, CHUNK=CHUNK, MAX_CANDIDATES=max_candidates, num_warps=8,
    )  # fmt: skip
    _radix_select[(rows,)](
        *(thresholds, candidates, candidate_ids, edges, sums, logits, *row_settings),
        **sizes, BLOCK=_BLOCK, MAX_CANDIDATES=max_candidates, num_warps=8,
    )  # fmt: skip
    return thresholds


@triton.jit
def limits(
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
def _first_edge(level, max_z):
    """The lower edge of a level of the first histogram: 1, 2, .. 8 below the largest z, then by
    factors of 2^0.36, the last without limit."""
    outer = 8.0 * tl.exp2(0.36 * (level - 7).to(tl.float32))
    within = (level + 1).to(tl.float32)
    edge = tl.maximum(max_z - tl.where(level < 8, within, outer), _LOWEST_Z)
    return tl.where(level < _LEVELS - 1, edge, _LOWEST_Z)


@triton.jit
def _inner_edge(level, low, split):
    """The lower edge of a level of the second histogram: equal parts of [low, split)."""
    part = (level + 1).to(tl.float32) * (1.0 / _LEVELS)
    return tl.where(level < _LEVELS - 1, tl.maximum(split - (split - low) * part, low), low)


@triton.jit
def mass(z, max_z):
    return (tl.exp(z - max_z) * _MASS_UNIT).to(tl.int64)


@triton.jit
def mass_needed(top_p, total_mass):
    return tl.maximum(tl.ceil(top_p.to(tl.float64) * total_mass.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _chunk_histogram(
    histogram, edges, sums, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr,
    MIN_REFINED: tl.constexpr, IS_FIRST: tl.constexpr,
):  # fmt: skip
    """Of one chunk: the tokens between the upper end of the row's bin and the lower edge of each
    level."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, max_z, top_k, top_p = limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    is_active = (top_k > 0) | (top_p < 1.0)
    low, split, high = max_z, max_z, tl.zeros_like(max_z) + INFINITY
    if not IS_FIRST and is_active:
        is_active = tl.load(sums + row * _NUM_SUMS + _COUNT) > MIN_REFINED
        low = tl.load(edges + row * _NUM_EDGES + _LOW)
        split = tl.load(edges + row * _NUM_EDGES + _SPLIT)
        high = tl.load(edges + row * _NUM_EDGES + _HIGH)
    if is_active:
        level = tl.arange(0, _LEVELS)
        lower = _first_edge(level, max_z) if IS_FIRST else _inner_edge(level, low, split)  # [LEVELS]
        found = tl.zeros([_LEVELS, PART], tl.int64)
        for start in range(0, CHUNK, PART):
            column = chunk * CHUNK + start + tl.arange(0, PART)
            z = scale_logits(load_clean(logits, row, column, V), temperature)
            entry = tl.where((column < V) & (z < high), mass(z, max_z) + _ONE_TOKEN, 0)
            found += tl.where(z[None, :] >= lower[:, None], entry[None, :], 0)
        offset = (row * CHUNKS + chunk).to(tl.int64) * _LEVELS + level
        tl.store(histogram + offset, tl.sum(found, 1))


@triton.jit
def _at_level(values, level, selected):
    """One element of a vector; 0 for a level of -1."""
    return tl.sum(tl.where(level == selected, values, 0), 0)


@triton.jit
def _choose_bin(
    edges, sums, offsets, histogram, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, MIN_REFINED: tl.constexpr, IS_FIRST: tl.constexpr,
):  # fmt: skip
    """Choose the first level that holds enough tokens. Its bin starts at the level above, or, with
    both limits, at the top: top-p then weighs all tokens that top-k keeps."""
    row = tl.program_id(0)
    _, max_z, top_k, top_p = limits(row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS)
    row_edges, row_sums = edges + row * _NUM_EDGES, sums + row * _NUM_SUMS
    is_active = (top_k > 0) | (top_p < 1.0)
    if not IS_FIRST and is_active:
        is_active = tl.load(row_sums + _COUNT) > MIN_REFINED
    if is_active:
        slot, level = tl.arange(0, SLOTS), tl.arange(0, _LEVELS)
        offset = (row * CHUNKS + slot[:, None]).to(tl.int64) * _LEVELS + level[None, :]
        entries = tl.load(histogram + offset, mask=slot[:, None] < CHUNKS, other=0)  # [SLOTS, LEVELS]
        chunk_counts = entries >> _COUNT_SHIFT
        counts, masses = tl.sum(chunk_counts, 0), tl.sum(entries & (_ONE_TOKEN - 1), 0)  # [LEVELS]
        above = tl.full([], 0, tl.int64)
        if IS_FIRST:
            total_mass = _at_level(masses, level, _LEVELS - 1)
            # If fewer tokens than k are possible, k does not limit the row.
            top_k = tl.where(top_k < _at_level(counts, level, _LEVELS - 1), top_k, 0)
            low, split, high = max_z, max_z, tl.zeros_like(max_z) + INFINITY
        else:
            above = tl.load(row_sums + _ABOVE)
            total_mass = tl.load(row_sums + _TOTAL_MASS)
            top_k = tl.load(row_sums + _TOP_K).to(tl.int32)
            low, split = tl.load(row_edges + _LOW), tl.load(row_edges + _SPLIT)
            high = tl.load(row_edges + _HIGH)
        need = tl.where(top_k > 0, top_k.to(tl.int64), mass_needed(top_p, total_mass))
        weights = tl.where(top_k > 0, counts, masses) + above
        selected = tl.minimum(_LEVELS - tl.sum((weights >= need).to(tl.int32), 0), _LEVELS - 1)
        if IS_FIRST:
            new_low, upper = _first_edge(selected, max_z), _first_edge(selected - 1, max_z)
        else:
            new_low, upper = _inner_edge(selected, low, split), _inner_edge(selected - 1, low, split)
        new_split = tl.where(selected > 0, upper, split)
        has_both = (top_k > 0) & (top_p < 1.0)
        starts_lower = tl.where(has_both, False, selected > 0)
        cut = tl.where(starts_lower, selected - 1, -1)
        new_above = tl.where(starts_lower, _at_level(weights, level, cut), above)
        in_bin = tl.sum(tl.where(level[None, :] == selected, chunk_counts, 0), 1)  # [SLOTS]
        in_bin -= tl.sum(tl.where(level[None, :] == cut, chunk_counts, 0), 1)
        tl.store(offsets + row * CHUNKS + slot, tl.cumsum(in_bin, 0) - in_bin, mask=slot < CHUNKS)
        tl.store(row_edges + _LOW, new_low)
        tl.store(row_edges + _SPLIT, new_split)
        tl.store(row_edges + _HIGH, tl.where(starts_lower, upper, high))
        tl.store(row_sums + _ABOVE, new_above)
        tl.store(row_sums + _COUNT, tl.sum(in_bin, 0))
        tl.store(row_sums + _TOTAL_MASS, total_mass)
        tl.store(row_sums + _TOP_K, top_k.to(tl.int64))


@triton.jit
def _compact(
    candidates, candidate_ids, edges, sums, offsets, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, _max_z, top_k, top_p = limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    if (top_k > 0) | (top_p < 1.0):
        low, high = tl.load(edges + row * _NUM_EDGES + _LOW), tl.load(edges + row * _NUM_EDGES + _HIGH)
        chunk_max_z = scale_logits(tl.load(best + row * CHUNKS + chunk), temperature)
        fits = tl.load(sums + row * _NUM_SUMS + _COUNT) <= MAX_CANDIDATES
        if fits & (chunk_max_z >= low):
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            x = load_clean(logits, row, column, V)
            z = scale_logits(x, temperature)
            within = (column < V) & (z >= low) & (z < high)
            start = row.to(tl.int64) * MAX_CANDIDATES + tl.load(offsets + row * CHUNKS + chunk)
            place = start + tl.cumsum(within.to(tl.int32), 0) - 1
            tl.store(candidates + place, x, mask=within)
            tl.store(candidate_ids + place, column, mask=within)


@triton.jit
def _weigh_block(
    source, ids, is_compacted, start, count, temperature, max_z, low, high, threshold, last,
    BLOCK: tl.constexpr, BY_MASS: tl.constexpr,
):  # fmt: skip
    """Ids, ranks and weights of a block of candidates.

    A weight is 1, or the mass; 0 for tokens that are not in the bin or not kept.
    """
    offset = start + tl.arange(0, BLOCK)
    real = offset < count
    z = scale_logits(clean(tl.load(source + offset, mask=real, other=0.0)), temperature)
    column = tl.where(is_compacted, tl.load(ids + offset, mask=real & is_compacted, other=0), offset)
    rank = rank_of(z)
    weight = tl.full([BLOCK], 1, tl.int64)
    if BY_MASS:
        weight = mass(z, max_z)
    is_open = real & (z >= low) & (z < high) & is_kept(rank, column, threshold, last)
    return column, rank, tl.where(is_open, weight, 0)


@triton.jit
def _select(
    source, ids, is_compacted, count, temperature, max_z, low, high, threshold, last, need,
    BLOCK: tl.constexpr, BY_MASS: tl.constexpr,
):  # fmt: skip
    """The smallest set of the best kept tokens with a weight of at least `need`: its threshold and
    last id. Digits that all ranks of the bin share are not searched."""
    digit = tl.arange(0, 16)[None, :]
    low_rank, high_rank = rank_of(low).to(tl.int64), rank_of(high).to(tl.int64)
    rank_found = tl.full([], LOWEST_RANK, tl.int64)  # tokens of this rank or above weigh enough
    above = tl.full([], 0, tl.int64)  # weight of all tokens above it
    for step in range(8):
        shift = 28 - 4 * step
        if (low_rank >> shift) == (high_rank >> shift):
            rank_found = (low_rank >> shift) << shift
        else:
            unit = tl.full([], 1, tl.int64) << shift
            digit_ranks = (rank_found + digit * unit).to(tl.int32)  # [1, 16]
            sums = tl.zeros([BLOCK, 16], tl.int64)
            for start in range(0, count, BLOCK):
                _, rank, weight = _weigh_block(
                    source, ids, is_compacted, start, count, temperature, max_z, low, high, threshold, last, BLOCK, BY_MASS
                )  # fmt: skip
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
            source, ids, is_compacted, start, count, temperature, max_z, low, high, threshold, last, BLOCK, BY_MASS
        )  # fmt: skip
        weight = tl.where(rank == threshold_found, weight, 0)
        reached = (weight > 0) & (tl.cumsum(weight, 0) >= remaining)
        last_found = tl.minimum(last_found, tl.min(tl.where(reached, column, NO_ID), 0))
        remaining -= tl.sum(weight, 0)
    return threshold_found, last_found


@triton.jit
def _radix_select(
    thresholds, candidates, candidate_ids, edges, sums, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    temperature, max_z, top_k, top_p = limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    threshold = tl.full([], LOWEST_RANK, tl.int32)
    last = tl.full([], NO_ID, tl.int32)
    if (top_k > 0) | (top_p < 1.0):
        low, high = tl.load(edges + row * _NUM_EDGES + _LOW), tl.load(edges + row * _NUM_EDGES + _HIGH)
        above = tl.load(sums + row * _NUM_SUMS + _ABOVE)
        count = tl.load(sums + row * _NUM_SUMS + _COUNT).to(tl.int32)
        total_mass = tl.load(sums + row * _NUM_SUMS + _TOTAL_MASS)
        top_k = tl.load(sums + row * _NUM_SUMS + _TOP_K).to(tl.int32)
        is_compacted = count <= MAX_CANDIDATES
        source = logits + row.to(tl.int64) * V
        if is_compacted:
            source = candidates + row.to(tl.int64) * MAX_CANDIDATES
        count = tl.where(is_compacted, count, V)
        ids = candidate_ids + row.to(tl.int64) * MAX_CANDIDATES
        if top_k > 0:
            need = top_k.to(tl.int64) - above
            threshold, last = _select(
                source, ids, is_compacted, count, temperature, max_z, low, high, threshold, last, need, BLOCK, False
            )  # fmt: skip
            if top_p < 1.0:  # of the mass that is kept; the bin holds all of it
                masses = tl.zeros([BLOCK], tl.int64)
                for start in range(0, count, BLOCK):
                    _, _, weight = _weigh_block(
                        source, ids, is_compacted, start, count, temperature, max_z, low, high, threshold, last, BLOCK, True
                    )  # fmt: skip
                    masses += weight
                total_mass = tl.sum(masses, 0)
        if top_p < 1.0:
            need = mass_needed(top_p, total_mass) - above
            threshold, last = _select(
                source, ids, is_compacted, count, temperature, max_z, low, high, threshold, last, need, BLOCK, True
            )  # fmt: skip
    tl.store(thresholds + row * 2, threshold)
    tl.store(thresholds + row * 2 + 1, last)
