"""Draws before the thresholds are known: from all tokens, as if there were no top-p.

The argmax of z + noise over the kept tokens is the argmax over all tokens if that one is kept. So a
token is drawn first, then the mass of the tokens before it says whether top-p keeps it. That holds
in a share top_p of all draws. If it is not kept, nothing after it is kept either, and the next draw
is from the tokens before it. The threshold is searched only for rows without a kept draw.

    _chunk_mass [n, chunks]   the mass of all tokens, and of those before the token drawn
    _accept     [n]           top-p keeps the token: 1, so that nothing is left to limit
                              else: top_p, and the tokens before the one drawn are left

With top-k few draws of a flat distribution would be kept, so such rows are not drawn here.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.sampler.logits import (
    CHUNK,
    INFINITY,
    LOWEST_RANK,
    NO_ID,
    clean,
    load_argmax,
    load_clean,
    rank_of,
    scale_logits,
)
from holdfast.numerics.backends.triton.sampler.thresholds import limits, mass, mass_needed
from holdfast.numerics.sampling import SamplingBatch


def accept_draws(
    logits: Tensor,
    batch: SamplingBatch,
    top_p: Tensor,
    best: Tensor,
    best_ids: Tensor,
    drawn: Tensor,
    drawn_ids: Tensor,
) -> tuple[Tensor, Tensor]:
    """top_p fp32 [n], but 1 for rows whose draw is kept; and int32 [n, 2]: threshold rank and last
    id of the tokens that are left in the others. The argmax of the logits and of z + noise is given
    for each chunk, [n, chunks]."""
    rows, chunks = best.shape
    sums = torch.empty((rows, chunks, 2), dtype=torch.int64, device=logits.device)
    open_top_p = torch.empty(rows, dtype=torch.float32, device=logits.device)
    left = torch.empty((rows, 2), dtype=torch.int32, device=logits.device)
    row_settings = (best, best_ids, batch.temperature, batch.top_k, top_p)
    sizes = {"V": logits.shape[1], "CHUNKS": chunks, "SLOTS": int(triton.next_power_of_2(chunks))}
    _chunk_mass[(rows, chunks)](
        sums, logits, drawn, drawn_ids, *row_settings, **sizes, CHUNK=CHUNK, num_warps=8
    )
    _accept[(rows,)](open_top_p, left, sums, logits, drawn, drawn_ids, *row_settings, **sizes, num_warps=1)
    return open_top_p, left


@triton.jit
def _chunk_mass(
    sums, logits, drawn, drawn_ids, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, max_z, top_k, top_p = limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    if (top_k == 0) & (top_p < 1.0):
        drawn_rank, token_id, _is_any = _load_draw(
            drawn, drawn_ids, logits, row, temperature, V, CHUNKS, SLOTS
        )
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        z = scale_logits(load_clean(logits, row, column, V), temperature)
        masses = tl.where(column < V, mass(z, max_z), 0)
        rank = rank_of(z)
        is_before = (rank > drawn_rank) | ((rank == drawn_rank) & (column < token_id))
        place = sums + (row * CHUNKS + chunk).to(tl.int64) * 2
        tl.store(place, tl.sum(masses, 0))
        tl.store(place + 1, tl.sum(tl.where(is_before, masses, 0), 0))


@triton.jit
def _accept(
    open_top_p, left, sums, logits, drawn, drawn_ids, best, best_ids, temperatures, top_ks, top_ps,
    V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    temperature, _max_z, top_k, top_p = limits(
        row, best, best_ids, temperatures, top_ks, top_ps, V, CHUNKS, SLOTS
    )
    still_open = tl.load(top_ps + row)
    if (top_k == 0) & (top_p < 1.0):
        drawn_rank, token_id, is_any = _load_draw(
            drawn, drawn_ids, logits, row, temperature, V, CHUNKS, SLOTS
        )
        slot = tl.arange(0, SLOTS)
        place = sums + (row.to(tl.int64) * CHUNKS + slot) * 2
        total = tl.sum(tl.load(place, mask=slot < CHUNKS, other=0), 0)
        before = tl.sum(tl.load(place + 1, mask=slot < CHUNKS, other=0), 0)
        still_open = tl.where(is_any & (before < mass_needed(top_p, total)), 1.0, still_open)
        tl.store(left + row * 2, tl.where(is_any, drawn_rank, LOWEST_RANK))
        tl.store(left + row * 2 + 1, tl.where(is_any, token_id - 1, NO_ID))
    tl.store(open_top_p + row, still_open)


@triton.jit
def _load_draw(
    drawn, drawn_ids, logits, row, temperature, V: tl.constexpr, CHUNKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """Rank and id of the token drawn, and whether there is one."""
    highest, token_id = load_argmax(drawn, drawn_ids, row, CHUNKS, SLOTS)
    is_any = highest > -INFINITY
    x = tl.load(logits + row.to(tl.int64) * V + token_id, mask=is_any, other=0.0)
    return rank_of(scale_logits(clean(x), temperature)), token_id, is_any
