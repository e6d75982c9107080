"""From the fused qkv product to what attention reads: summed, normed, rotated; q in rows, keys and values in their slots.

A program takes some heads of one row. A head lies as two halves, which is how it is rotated (rotate-half) and how its norm
folds it. The heads of a row, in the product and in the program's head numbers:

    0 .. H - 1 | H .. H + KVH - 1 | .. H + 2 KVH - 1
    q          | k                | v

`rope` and `store` are the same steps one by one, with the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.launch import in_turn, take_turn
from holdfast.numerics.backends.triton.norm import fold_of, inverse_rms, scaled
from holdfast.numerics.backends.triton.partial_sums import parts_of, summed
from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.layer import LayerShape

_GROUP = 8  # heads a program takes


def rope_store(
    data: Tensor,
    bias: Tensor | None,
    norms: tuple[Tensor, Tensor] | None,
    shape: LayerShape,
    cos: Tensor,
    sin: Tensor,
    layer: KVLayer,
    slots: Tensor,
) -> Tensor:
    """The product [rows, (H + 2 KVH) D], cos and sin fp32 [rows, D / 2] -> q [rows, H, D]; slots of -1 are not written."""
    parts = parts_of(data, bias)
    heads, kv_heads, width = shape.heads, shape.kv_heads, shape.head_dim
    assert parts.width == (heads + 2 * kv_heads) * width and layer.keys.shape[1:3] == (kv_heads, width)
    assert cos.shape == sin.shape == (parts.rows, width // 2) and cos.is_contiguous() and sin.is_contiguous()
    q = torch.empty((parts.rows, heads, width), dtype=layer.keys.dtype, device=data.device)
    q_norm, k_norm = norms if norms is not None else (q, q)
    fold = fold_of(width)
    if parts.rows:
        _rope_store[(parts.rows, triton.cdiv(heads + 2 * kv_heads, _GROUP))](
            *(q, layer.keys, layer.values, parts.data, parts.bias, q_norm, k_norm, cos, sin, slots),
            *(shape.eps, parts.part_rows, *layer.keys.stride(), *layer.values.stride()),
            HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, HALF=fold.half, LANES=fold.lanes, LEVELS=fold.levels,
            GROUP=_GROUP, PAGE=layer.keys.shape[3], SLICES=parts.slices, HAS_BIAS=parts.has_bias,
            NORMED=norms is not None, num_warps=4, **in_turn,
        )  # fmt: skip
    return q


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates q [rows, H, D] and k [rows, KVH, D] in place; either may be a view."""
    fold = fold_of(q.shape[2])
    assert cos.is_contiguous() and sin.is_contiguous()
    for x in (q, k):
        rows, heads, width = x.shape
        if rows:
            _rope[(rows, triton.cdiv(heads, _GROUP))](
                *(x, cos, sin, *x.stride()),
                HEADS=heads, WIDTH=width, HALF=fold.half, LANES=fold.lanes, GROUP=_GROUP, num_warps=4,
            )  # fmt: skip


def store(k: Tensor, v: Tensor, layer: KVLayer, slots: Tensor) -> None:
    """Writes k, v [rows, KVH, D] to their slots int64 [rows]; slot -1 is skipped."""
    rows, heads, width = k.shape
    assert layer.keys.shape[1:3] == (heads, width) and v.shape == k.shape and slots.is_contiguous()
    if rows:
        _store[(rows, triton.cdiv(heads, _GROUP))](
            *(k, v, layer.keys, layer.values, slots, *k.stride(), *v.stride()),
            *(*layer.keys.stride(), *layer.values.stride()),
            HEADS=heads, WIDTH=width, LANES=int(triton.next_power_of_2(width)), GROUP=_GROUP,
            PAGE=layer.keys.shape[3], num_warps=4,
        )  # fmt: skip


@triton.jit
def _rotated(low, high, cos, sin):
    """The halves of a head, in fp32, turned by the row's angles."""
    return tl.fma(low, cos, -(high * sin)), tl.fma(high, cos, low * sin)


@triton.jit
def _put(
    pages, slot, head, lane, x, mask, stride_page, stride_head, stride_lane, stride_slot, PAGE: tl.constexpr
):
    at = slot // PAGE * stride_page + head * stride_head + slot % PAGE * stride_slot + lane * stride_lane
    tl.store(pages + at, x, mask=mask & (slot >= 0))


@triton.jit(do_not_specialize=["part_rows"])
def _rope_store(
    q, keys, values, data, bias, q_norm, k_norm, cos, sin, slots, eps, part_rows,
    key_page, key_head, key_lane, key_slot, value_page, value_head, value_slot, value_lane,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr,
    LEVELS: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr, SLICES: tl.constexpr, HAS_BIAS: tl.constexpr,
    NORMED: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    take_turn(TURNS)
    row = tl.program_id(0)
    head = (tl.program_id(1) * GROUP + tl.arange(0, GROUP))[:, None]  # [G, 1]
    lane = tl.arange(0, LANES)[None, :]  # [1, LANES]
    dtype = q.dtype.element_ty
    mask = (head < HEADS + 2 * KV_HEADS) & (lane < HALF)  # [G, LANES]
    column = head * WIDTH + lane
    total: tl.constexpr = (HEADS + 2 * KV_HEADS) * WIDTH
    low = summed(data, bias, row, column, mask, part_rows, total, SLICES, HAS_BIAS).to(dtype)
    high = summed(data, bias, row, HALF + column, mask, part_rows, total, SLICES, HAS_BIAS).to(dtype)
    slot = tl.load(slots + row)
    is_q, is_v = head < HEADS, head >= HEADS + KV_HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    if NORMED:
        inverse = inverse_rms(wide_low, wide_high, eps, WIDTH, LEVELS)  # [G, 1]
        low_weight = _norm_weight(q_norm, k_norm, lane, is_q, is_k, HALF)
        high_weight = _norm_weight(q_norm + HALF, k_norm + HALF, lane, is_q, is_k, HALF)
        wide_low = scaled(wide_low, inverse, low_weight).to(tl.float32)
        wide_high = scaled(wide_high, inverse, high_weight).to(tl.float32)
    turn_cos = tl.load(cos + row.to(tl.int64) * HALF + lane, mask=lane < HALF, other=0.0)
    turn_sin = tl.load(sin + row.to(tl.int64) * HALF + lane, mask=lane < HALF, other=0.0)
    turned_low, turned_high = _rotated(wide_low, wide_high, turn_cos, turn_sin)
    turned_low, turned_high = turned_low.to(dtype), turned_high.to(dtype)
    at = q + row.to(tl.int64) * (HEADS * WIDTH) + column
    tl.store(at, turned_low, mask=mask & is_q)
    tl.store(at + HALF, turned_high, mask=mask & is_q)
    k_head, v_head = head - HEADS, head - HEADS - KV_HEADS
    in_k, in_v = mask & is_k, mask & is_v
    _put(keys, slot, k_head, lane, turned_low, in_k, key_page, key_head, key_lane, key_slot, PAGE)
    _put(keys, slot, k_head, HALF + lane, turned_high, in_k, key_page, key_head, key_lane, key_slot, PAGE)
    _put(values, slot, v_head, lane, low, in_v, value_page, value_head, value_lane, value_slot, PAGE)
    _put(values, slot, v_head, HALF + lane, high, in_v, value_page, value_head, value_lane, value_slot, PAGE)


@triton.jit
def _norm_weight(q_norm, k_norm, lane, is_q, is_k, HALF: tl.constexpr):
    """The norm's weight for each head of a group, [G, LANES]; v has none."""
    for_q = tl.load(q_norm + lane, mask=is_q & (lane < HALF), other=0.0)
    return tl.where(is_q, for_q, tl.load(k_norm + lane, mask=is_k & (lane < HALF), other=0.0))


@triton.jit
def _rope(
    x, cos, sin, stride_row, stride_head, stride_lane,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * GROUP + tl.arange(0, GROUP))[:, None]
    lane = tl.arange(0, LANES)[None, :]
    mask = (head < HEADS) & (lane < HALF)
    at = x + row * stride_row + head * stride_head + lane * stride_lane
    low, high = tl.load(at, mask=mask, other=0.0), tl.load(at + HALF * stride_lane, mask=mask, other=0.0)
    turn_cos = tl.load(cos + row * HALF + lane, mask=lane < HALF, other=0.0)
    turn_sin = tl.load(sin + row * HALF + lane, mask=lane < HALF, other=0.0)
    turned_low, turned_high = _rotated(low.to(tl.float32), high.to(tl.float32), turn_cos, turn_sin)
    tl.store(at, turned_low.to(low.dtype), mask=mask)
    tl.store(at + HALF * stride_lane, turned_high.to(low.dtype), mask=mask)


@triton.jit
def _store(
    k, v, keys, values, slots, k_row, k_head, k_lane, v_row, v_head, v_lane,
    key_page, key_head, key_lane, key_slot, value_page, value_head, value_slot, value_lane,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * GROUP + tl.arange(0, GROUP))[:, None]
    lane = tl.arange(0, LANES)[None, :]
    mask = (head < HEADS) & (lane < WIDTH)
    slot = tl.load(slots + row)
    key = tl.load(k + row * k_row + head * k_head + lane * k_lane, mask=mask, other=0.0)
    value = tl.load(v + row * v_row + head * v_head + lane * v_lane, mask=mask, other=0.0)
    _put(keys, slot, head, lane, key, mask, key_page, key_head, key_lane, key_slot, PAGE)
    _put(values, slot, head, lane, value, mask, value_page, value_head, value_lane, value_slot, PAGE)
