"""Which experts see a token, and the sum of what they give.

    route     router logits -> the top k experts of each token, and their weights
    assign    the pairs of each expert, in the order of tokens
    combine   the outputs of a token's experts, added (`partial_sums.py`)

Nothing is exchanged with the host, and no floating-point atomics are used: a token's experts, weights
and sum depend on its own logits and outputs only.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.gemms.grouped_gemm import (
    MAX_SINGLE_PAIRS,
    Assignment,
    Tile,
    list_tiles,
)
from holdfast.numerics.backends.triton.gemms.partial_sums import (
    ExpertOutputs,
    as_partial_sums,
    load_expert_sum,
    load_sum,
)
from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch
from holdfast.numerics.backends.triton.norm import row_layout, row_sum
from holdfast.numerics.backends.triton.sampler.logits import INFINITY, argmax_of
from holdfast.numerics.experts import SigmoidScores

_CHUNK, _SEGMENT = 2048, 8192  # pairs that a program of `assign` looks at together, and in all
_COMBINE_BLOCK = 1024
_LOWEST = tl.constexpr(-8.5e37)  # of a logit that is no number


def route(
    data: Tensor,
    bias: Tensor | None,
    num_experts: int,
    top_k: int,
    *,
    normalizes: bool,
    sigmoid: SigmoidScores | None = None,
) -> tuple[Tensor, Tensor]:
    """The router's GEMM result [tokens, at least num_experts] -> weights fp32 and ids int32 [tokens,
    top_k], by descending logit, ties to the lowest id.

    normalizes: the weights add up to 1, else they are probabilities among all experts. sigmoid: as in
    `experts.route`.
    """
    partial = as_partial_sums(data, bias)
    shape = (partial.rows, top_k)
    weights = torch.empty(shape, dtype=torch.float32, device=data.device)
    ids = torch.empty(shape, dtype=torch.int32, device=data.device)
    if partial.rows:
        _route[(partial.rows,)](
            *(weights, ids, partial.data, partial.bias, partial.split_rows),
            *((weights, 1.0, 0.0) if sigmoid is None else (sigmoid.bias, sigmoid.scale, sigmoid.eps)),
            WIDTH=partial.width, SPLIT_K=partial.split_k, HAS_BIAS=partial.has_bias, NUM_EXPERTS=num_experts,
            EXPERTS=int(triton.next_power_of_2(num_experts)), TOP_K=top_k, SLOTS=int(triton.next_power_of_2(top_k)),
            NORMALIZES=normalizes, SIGMOID=sigmoid is not None, num_warps=1, **pdl_launch,
        )  # fmt: skip
    return weights, ids


def assign(ids: Tensor, num_experts: int, tile: Tile) -> Assignment:
    """ids int32 [tokens, top_k]; tile: the form of the GEMMs.

    A program looks for the pairs of one expert in a segment of all pairs. With several segments, a
    first kernel counts each expert's pairs in them.
    """
    num_tokens, num_pairs = ids.shape[0], ids.numel()
    if num_pairs <= MAX_SINGLE_PAIRS:
        return Assignment(ids, None, None)
    members = torch.empty((num_experts, num_tokens), dtype=torch.int32, device=ids.device)
    counts = torch.empty(num_experts, dtype=torch.int32, device=ids.device)
    chunk = min(_CHUNK, int(triton.next_power_of_2(num_pairs)))
    num_segments = triton.cdiv(num_pairs, _SEGMENT)
    before = counts
    if num_segments > 1:
        before = torch.empty((num_segments, num_experts), dtype=torch.int32, device=ids.device)
        _count_segments[(num_segments,)](
            *(before, ids, num_pairs, num_experts),
            EXPERTS=int(triton.next_power_of_2(num_experts)), SEGMENT=_SEGMENT, num_warps=8, **pdl_launch,
        )  # fmt: skip
    _assign[(num_experts, num_segments)](
        *(members, counts, ids, before, num_pairs, num_tokens),
        CHUNK=chunk, SEGMENT=_SEGMENT, SEGMENTED=num_segments > 1, num_warps=4, **pdl_launch,
    )  # fmt: skip
    tiles = None if tile.swapped else list_tiles(counts, num_pairs, tile.rows)
    return Assignment(ids, members, counts, tiles)


def combine(found: ExpertOutputs) -> Tensor:
    """[tokens, hidden], summed in fp32 and rounded once."""
    num_tokens, hidden = len(found.weights), found.outputs.shape[1]
    out = found.outputs.new_empty((num_tokens, hidden))
    if num_tokens:
        block = min(_COMBINE_BLOCK, int(triton.next_power_of_2(hidden)))
        _combine[(num_tokens, triton.cdiv(hidden, block))](
            *(out, found.outputs, found.weights, found.shared_or_any, found.gate_or_any),
            WIDTH=hidden, TOP_K=found.top_k, HAS_SHARED=found.shared is not None, BLOCK=block, num_warps=4, **pdl_launch,
        )  # fmt: skip
    return out


def row_dot(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, K], weight [1, K] -> fp32 [rows, 1], each row summed in the tree of `norm.py`.

    The library's GEMMs with one output choose their order by the number of rows.
    """
    rows, width = x.shape
    out = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    if rows:
        layout = row_layout(width)
        _row_dot[(rows,)](
            *(out, x.contiguous(), weight), WIDTH=width, HALF=layout.half, BLOCK=layout.block,
            LEVELS=layout.levels, num_warps=layout.warps, **pdl_launch,
        )  # fmt: skip
    return out


@triton.jit
def _row_dot(
    out, x, weight,
    WIDTH: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    in_low, in_high = column < HALF, HALF + column < WIDTH
    low = tl.load(x + row * WIDTH + column, mask=in_low, other=0.0).to(tl.float32)
    high = tl.load(x + row * WIDTH + HALF + column, mask=in_high, other=0.0).to(tl.float32)
    low_weight = tl.load(weight + column, mask=in_low, other=0.0).to(tl.float32)
    high_weight = tl.load(weight + HALF + column, mask=in_high, other=0.0).to(tl.float32)
    products = tl.fma(low, low_weight, high * high_weight)
    tl.store(out + row + tl.arange(0, 1), tl.reshape(row_sum(products[None, :], LEVELS), [1]))


@triton.jit(do_not_specialize=["split_rows"])
def _route(
    weights, ids, data, bias, split_rows, score_bias, scale, eps,
    WIDTH: tl.constexpr, SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SLOTS: tl.constexpr, NORMALIZES: tl.constexpr, SIGMOID: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0)
    expert, slot = tl.arange(0, EXPERTS), tl.arange(0, SLOTS)
    logits = load_sum(data, bias, row, expert, expert < NUM_EXPERTS, split_rows, WIDTH, SPLIT_K, HAS_BIAS)
    logits = tl.where(logits == logits, tl.minimum(tl.maximum(logits, _LOWEST), -_LOWEST), _LOWEST)
    logits = tl.where(expert < NUM_EXPERTS, logits, -INFINITY)
    highest = tl.max(logits, 0)
    left = logits
    scores = logits
    if SIGMOID:
        scores = tl.math.div_rn(tl.full((EXPERTS,), 1.0, tl.float32), 1.0 + tl.exp(-logits))
        biased = scores + tl.load(score_bias + expert, mask=expert < NUM_EXPERTS, other=0.0)
        left = tl.where(expert < NUM_EXPERTS, biased, -INFINITY)
    chosen = tl.full((SLOTS,), -INFINITY, tl.float32)
    chosen_ids = tl.zeros((SLOTS,), tl.int32)
    total = tl.zeros((), tl.float32)
    for number in tl.static_range(TOP_K):
        best, best_id = argmax_of(left, expert)
        left = tl.where(expert == best_id, -INFINITY, left)
        if SIGMOID:
            best = tl.sum(tl.where(expert == best_id, scores, 0.0), 0)
        chosen = tl.where(slot == number, best, chosen)
        chosen_ids = tl.where(slot == number, best_id, chosen_ids)
        total += best if SIGMOID else tl.exp(best - highest)
    if SIGMOID:
        result = tl.where(slot < TOP_K, chosen, 0.0)
        if NORMALIZES:
            result = tl.math.div_rn(result, total + eps + tl.zeros_like(chosen))
        result = result * scale
    else:
        if not NORMALIZES:
            total = tl.sum(tl.exp(logits - highest), 0)
        result = tl.math.div_rn(tl.exp(chosen - highest), total + tl.zeros_like(chosen))
    at = row.to(tl.int64) * TOP_K + slot
    tl.store(weights + at, result, mask=slot < TOP_K)
    tl.store(ids + at, chosen_ids, mask=slot < TOP_K)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_segments(
    before, ids, num_pairs, num_experts, EXPERTS: tl.constexpr, SEGMENT: tl.constexpr, PDL: tl.constexpr
):
    """Row of a segment: the pairs of each expert in it."""
    pdl_begin(PDL)
    pair = tl.program_id(0) * SEGMENT + tl.arange(0, SEGMENT)
    mask = pair < num_pairs
    found = tl.histogram(tl.load(ids + pair, mask=mask, other=0), EXPERTS, mask=mask)
    expert = tl.arange(0, EXPERTS)
    tl.store(before + tl.program_id(0) * num_experts + expert, found, mask=expert < num_experts)


@triton.jit(do_not_specialize=["num_pairs", "capacity"])
def _assign(
    members, counts, ids, before, num_pairs, capacity,
    CHUNK: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    expert, segment = tl.program_id(0), tl.program_id(1)
    base = members + expert.to(tl.int64) * capacity
    count, begin, end = 0, 0, num_pairs
    if SEGMENTED:
        begin = segment * SEGMENT
        end = tl.minimum(begin + SEGMENT, num_pairs)
        for other in range(segment):
            count += tl.load(before + other * tl.num_programs(0) + expert)
    for start in range(begin, end, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        is_mine = (tl.load(ids + pair, mask=pair < end, other=-1) == expert).to(tl.int32)
        tl.store(base + count + tl.cumsum(is_mine, 0) - 1, pair, mask=is_mine == 1)
        count += tl.sum(is_mine, 0)
    if segment == tl.num_programs(1) - 1:
        tl.store(counts + expert, count)


@triton.jit
def _combine(
    out, outputs, weights, shared, gate,
    WIDTH: tl.constexpr, TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    total = load_expert_sum(outputs, weights, shared, gate, row, column, mask, WIDTH, TOP_K, HAS_SHARED)
    tl.store(out + row.to(tl.int64) * WIDTH + column, total.to(out.dtype.element_ty), mask=mask)
