"""What top-k and top-p keep of a row: the rank of the worst that is kept, its edge, and the last id that is kept at the edge.

    _chunk_table [n, chunks, levels]   how many of a chunk lie within some distances of the best, and what they weigh
    _compact     [n, chunks]           the nearest level that holds all that can be kept is copied together, in order of id
    _descend     [n]                   the edge among these, through the digits of the ranks, four bits at a time

Rows where nothing is cut off leave at once. Where too many are left to be copied, the last kernel reads the logits
themselves. A mass is a multiple of 2^-36 of the best one's, an integer like a count, so sums know no order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.logits import (
    CHUNK,
    NO_ID,
    clean,
    heat,
    is_finite,
    is_kept,
    load_best,
    load_clean,
    rank_of,
)
from holdfast.numerics.sampling import SamplingBatch

_ROOM = 16384  # how many may be copied together
_BLOCK = 1024  # what the descent takes at a time
_LEVELS = tl.constexpr(16)
_UNIT = tl.constexpr(2.0**36)
_COUNT_SHIFT = tl.constexpr(50)  # a table's entry: count << 50 | mass; of one chunk both fit
_ONE = tl.constexpr(1 << 50)
_LOWEST_RANK = tl.constexpr(-(1 << 31))


def find(logits: Tensor, batch: SamplingBatch, best: Tensor, best_ids: Tensor) -> Tensor:
    """logits fp32 [n, V] and the best of each chunk [n, chunks] -> int32 [n, 2]: edge and last id."""
    rows, vocabulary = logits.shape
    chunks, room = best.shape[1], min(_ROOM, vocabulary)
    device = logits.device
    edges = torch.empty((rows, 2), dtype=torch.int32, device=device)
    table = torch.empty((rows, chunks, _LEVELS.value), dtype=torch.int64, device=device)
    few = torch.empty((rows, room), dtype=torch.float32, device=device)
    few_ids = torch.empty((rows, room), dtype=torch.int32, device=device)
    found = torch.empty(
        (rows, 2), dtype=torch.int64, device=device
    )  # how many were copied, the mass of the row
    limits = (batch.temperature, batch.top_k, batch.top_p)
    sizes = {"V": vocabulary, "CHUNKS": chunks, "SLOTS": int(triton.next_power_of_2(chunks))}
    _chunk_table[(rows, chunks)](table, logits, best, best_ids, *limits, **sizes, CHUNK=CHUNK, num_warps=8)
    _compact[(rows, chunks)](
        *(few, few_ids, found, table, logits, best, best_ids, *limits),
        **sizes,
        CHUNK=CHUNK,
        ROOM=room,
        num_warps=8,
    )
    _descend[(rows,)](
        *(edges, few, few_ids, found, logits, best, best_ids, *limits),
        **sizes,
        BLOCK=_BLOCK,
        ROOM=room,
        num_warps=8,
    )
    return edges


@triton.jit
def _limits(
    row, best, best_ids, temperatures, top_ks, top_ps, V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """A row's temperature and hottest z, and its k and p, where they cut anything off: else 0 and 1."""
    temperature, top_k, top_p = tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row)
    top, _ = load_best(best, best_ids, row, CHUNKS, SLOTS)
    hot = temperature > 0.0
    temperature = tl.where(hot, temperature, 1.0)
    hottest = heat(top, temperature)
    sampled = hot & is_finite(hottest)
    top_k = tl.where(sampled & (top_k < V), tl.maximum(top_k, 0), 0)
    return temperature, hottest, top_k, tl.where(sampled & (top_p < 1.0), top_p, 1.0)


@triton.jit
def _within(level):
    """How far below the best a level reaches: 1, 2, .. 8, then by factors of 2^0.36, at last everything."""
    far = 8.0 * tl.exp2(0.36 * (level - 7).to(tl.float32))
    near = (level + 1).to(tl.float32)
    return tl.where(level < 8, near, tl.where(level < _LEVELS - 1, far, float("inf")))


@triton.jit
def _mass(z, hottest):
    return (tl.exp(z - hottest) * _UNIT).to(tl.int64)


@triton.jit
def _mass_needed(top_p, whole):
    return tl.maximum(tl.ceil(top_p.to(tl.float64) * whole.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _chunk_table(
    table, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, hottest, top_k, top_p = _limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    if (top_k > 0) | (top_p < 1.0):
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        z = heat(load_clean(logits, row, column, V), temperature)
        entry = tl.where(column < V, _mass(z, hottest) + _ONE, 0)
        at = table + (row * CHUNKS + chunk).to(tl.int64) * _LEVELS
        for step in range(_LEVELS):
            level = tl.full([], 0, tl.int32) + step
            tl.store(at + level, tl.sum(tl.where(hottest - z <= _within(level), entry, 0), 0))


@triton.jit
def _compact(
    few, few_ids, found, table, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, hottest, top_k, top_p = _limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    if (top_k > 0) | (top_p < 1.0):
        slot, level = tl.arange(0, SLOTS)[:, None], tl.arange(0, _LEVELS)[None, :]
        at = (row * CHUNKS + slot).to(tl.int64) * _LEVELS + level
        entries = tl.load(table + at, mask=slot < CHUNKS, other=0)  # [SLOTS, LEVELS]
        counts, masses = entries >> _COUNT_SHIFT, entries & (_ONE - 1)
        whole = tl.sum(tl.sum(tl.where(level == _LEVELS - 1, masses, 0), 1), 0)
        by_count, by_mass = tl.sum(counts, 0) >= top_k, tl.sum(masses, 0) >= _mass_needed(top_p, whole)
        enough = tl.where(top_k > 0, by_count, by_mass)  # [LEVELS]
        chosen = tl.minimum(_LEVELS - tl.sum(enough.to(tl.int32), 0), _LEVELS - 1)
        here = tl.where(level == chosen, counts, 0)
        before = tl.sum(tl.sum(tl.where(slot < chunk, here, 0), 1), 0)
        count = tl.sum(tl.sum(here, 1), 0)
        if count <= ROOM:
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            x = load_clean(logits, row, column, V)
            near = (column < V) & (hottest - heat(x, temperature) <= _within(chosen))
            place = row.to(tl.int64) * ROOM + before + tl.cumsum(near.to(tl.int32), 0) - 1
            tl.store(few + place, x, mask=near)
            tl.store(few_ids + place, column, mask=near)
        if chunk == 0:
            tl.store(found + row * 2, count)
            tl.store(found + row * 2 + 1, whole)


@triton.jit
def _weighed(
    source, ids, copied, start, count, temperature, hottest, edge, last, BLOCK: tl.constexpr, BY_MASS: tl.constexpr
):  # fmt: skip
    """Ids and ranks of a block of what is left, and what each of those kept so far weighs: one, or its mass."""
    at = start + tl.arange(0, BLOCK)
    real = at < count
    z = heat(clean(tl.load(source + at, mask=real, other=0.0)), temperature)
    column = tl.where(copied, tl.load(ids + at, mask=real & copied, other=0), at)
    rank = rank_of(z)
    weight = tl.full([BLOCK], 1, tl.int64)
    if BY_MASS:
        weight = _mass(z, hottest)
    return column, rank, tl.where(real & is_kept(rank, column, edge, last), weight, 0)


@triton.jit
def _narrow(
    source, ids, copied, count, temperature, hottest, edge, last, need, BLOCK: tl.constexpr, BY_MASS: tl.constexpr
):  # fmt: skip
    """The smallest set of the best, of those kept so far, that weighs `need` at least: its edge and last id."""
    digit = tl.arange(0, 16)[None, :]
    found = tl.full([], _LOWEST_RANK, tl.int64)  # what ranks so or above weighs enough
    above = tl.full([], 0, tl.int64)  # what all above it weighs
    for step in range(8):
        unit = tl.full([], 1, tl.int64) << (28 - 4 * step)
        marks = (found + digit * unit).to(tl.int32)  # [1, 16]
        sums = tl.zeros([BLOCK, 16], tl.int64)
        for start in range(0, count, BLOCK):
            _, rank, weight = _weighed(
                source, ids, copied, start, count, temperature, hottest, edge, last, BLOCK, BY_MASS
            )
            sums += tl.where(rank[:, None] >= marks, weight[:, None], 0)
        total = tl.sum(sums, 0)[None, :]  # [1, 16], falling
        chosen = tl.sum(tl.sum(((digit > 0) & (total >= need)).to(tl.int64), 1), 0)
        beyond = tl.sum(tl.sum(tl.where(digit == chosen + 1, total, 0), 1), 0)
        above = tl.where(chosen < 15, beyond, above)
        found += chosen * unit
    left = need - above  # to be had from those at the edge
    edge_found = found.to(tl.int32)
    last_found = tl.full([], NO_ID, tl.int32)
    for start in range(0, count, BLOCK):
        column, rank, weight = _weighed(
            source, ids, copied, start, count, temperature, hottest, edge, last, BLOCK, BY_MASS
        )
        weight = tl.where(rank == edge_found, weight, 0)
        reached = (weight > 0) & (tl.cumsum(weight, 0) >= left)
        last_found = tl.minimum(last_found, tl.min(tl.where(reached, column, NO_ID), 0))
        left -= tl.sum(weight, 0)
    return edge_found, last_found


@triton.jit
def _descend(
    edges, few, few_ids, found, logits, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    temperature, hottest, top_k, top_p = _limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    edge = tl.full([], _LOWEST_RANK, tl.int32)
    last = tl.full([], NO_ID, tl.int32)
    if (top_k > 0) | (top_p < 1.0):
        count = tl.load(found + row * 2).to(tl.int32)
        whole = tl.load(found + row * 2 + 1)
        copied = count <= ROOM
        source = logits + row.to(tl.int64) * V
        if copied:
            source = few + row.to(tl.int64) * ROOM
        count = tl.where(copied, count, V)
        ids = few_ids + row.to(tl.int64) * ROOM
        if top_k > 0:
            need = top_k.to(tl.int64)
            edge, last = _narrow(
                source, ids, copied, count, temperature, hottest, edge, last, need, BLOCK, False
            )
            sums = tl.zeros([BLOCK], tl.int64)
            for start in range(0, count, BLOCK):
                _, _, weight = _weighed(
                    source, ids, copied, start, count, temperature, hottest, edge, last, BLOCK, True
                )
                sums += weight
            whole = tl.sum(sums, 0)
        if top_p < 1.0:
            need = _mass_needed(top_p, whole)
            edge, last = _narrow(
                source, ids, copied, count, temperature, hottest, edge, last, need, BLOCK, True
            )
    tl.store(edges + row * 2, edge)
    tl.store(edges + row * 2 + 1, last)
