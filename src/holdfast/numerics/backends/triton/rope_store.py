"""From the result of the qkv GEMM to the inputs of attention: sum, norm, rotate; store q, and K and
V in their slots.

A program handles some heads of one row. A head is held as two halves, as rope (rotate-half) and the
norm's fold need it. The heads of a row, in the GEMM's result and by the program's head number:

    0 .. H - 1 | H .. H + KVH - 1 | .. H + 2 KVH - 1
    q          | k                | v

`rope` and `store` do the same steps one by one, with the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.gemms.partial_sums import as_partial_sums, load_sum
from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch
from holdfast.numerics.backends.triton.norm import apply_norm, inverse_rms, row_layout
from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.layer import LayerShape

_GROUP = 8  # heads per program


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
    """qkv [rows, (H + 2 KVH) D or more], cos and sin fp32 [rows, D / 2] -> q [rows, H, D].

    Slot -1 is skipped. Columns after v are not read.
    """
    partial = as_partial_sums(data, bias)
    heads, kv_heads, width = shape.heads, shape.kv_heads, shape.head_dim
    assert partial.width >= (heads + 2 * kv_heads) * width and layer.keys.shape[1:3] == (kv_heads, width)
    assert (
        cos.shape == sin.shape == (partial.rows, width // 2) and cos.is_contiguous() and sin.is_contiguous()
    )
    q = torch.empty((partial.rows, heads, width), dtype=layer.keys.dtype, device=data.device)
    q_norm, k_norm = norms if norms is not None else (q, q)
    layout = row_layout(width)
    if partial.rows:
        _rope_store[(partial.rows, triton.cdiv(heads + 2 * kv_heads, _GROUP))](
            *(q, layer.keys, layer.values, partial.data, partial.bias, q_norm, k_norm, cos, sin, slots),
            *(shape.eps, partial.split_rows, *layer.keys.stride(), *layer.values.stride()),
            HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, TOTAL=partial.width, HALF=layout.half, BLOCK=layout.block,
            LEVELS=layout.levels, GROUP=_GROUP, PAGE=layer.keys.shape[3], SPLIT_K=partial.split_k, HAS_BIAS=partial.has_bias,
            NORMED=norms is not None, num_warps=4, **pdl_launch,
        )  # fmt: skip
    return q


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate q [rows, H, D] and k [rows, KVH, D] in place. Either may be a view."""
    layout = row_layout(q.shape[2])
    assert cos.is_contiguous() and sin.is_contiguous()
    for x in (q, k):
        rows, heads, width = x.shape
        if rows:
            _rope[(rows, triton.cdiv(heads, _GROUP))](
                *(x, cos, sin, *x.stride()),
                HEADS=heads, WIDTH=width, HALF=layout.half, BLOCK=layout.block, GROUP=_GROUP, num_warps=4,
            )  # fmt: skip


def store(k: Tensor, v: Tensor, layer: KVLayer, slots: Tensor) -> None:
    """Write k, v [rows, KVH, D] to their slots int64 [rows]. Slot -1 is skipped."""
    rows, heads, width = k.shape
    assert layer.keys.shape[1:3] == (heads, width) and v.shape == k.shape and slots.is_contiguous()
    if rows:
        _store[(rows, triton.cdiv(heads, _GROUP))](
            *(k, v, layer.keys, layer.values, slots, *k.stride(), *v.stride()),
            *(*layer.keys.stride(), *layer.values.stride()),
            HEADS=heads, WIDTH=width, BLOCK=int(triton.next_power_of_2(width)), GROUP=_GROUP,
            PAGE=layer.keys.shape[3], num_warps=4,
        )  # fmt: skip


@triton.jit
def _rotate(low, high, cos, sin):
    """The halves of a head in fp32, rotated by the row's angles."""
    return tl.fma(low, cos, -(high * sin)), tl.fma(high, cos, low * sin)


@triton.jit
def _store_head(
    pages, slot, head, dim, x, mask, stride_page, stride_head, stride_dim, stride_slot, PAGE: tl.constexpr
):
    offset = slot // PAGE * stride_page + head * stride_head + slot % PAGE * stride_slot + dim * stride_dim
    tl.store(pages + offset, x, mask=mask & (slot >= 0))


@triton.jit(do_not_specialize=["split_rows"])
def _rope_store(
    q, keys, values, data, bias, q_norm, k_norm, cos, sin, slots, eps, split_rows,
    key_page, key_head, key_dim, key_slot, value_page, value_head, value_slot, value_dim,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, TOTAL: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr, SPLIT_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, NORMED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0)
    head = (tl.program_id(1) * GROUP + tl.arange(0, GROUP))[:, None]  # [G, 1]
    dim = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    dtype = q.dtype.element_ty
    mask = (head < HEADS + 2 * KV_HEADS) & (dim < HALF)  # [G, BLOCK]
    column = head * WIDTH + dim
    low = load_sum(data, bias, row, column, mask, split_rows, TOTAL, SPLIT_K, HAS_BIAS).to(dtype)
    high = load_sum(data, bias, row, HALF + column, mask, split_rows, TOTAL, SPLIT_K, HAS_BIAS).to(dtype)
    slot = tl.load(slots + row)
    is_q, is_v = head < HEADS, head >= HEADS + KV_HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    low32, high32 = low.to(tl.float32), high.to(tl.float32)
    if NORMED:
        inverse = inverse_rms(low32, high32, eps, WIDTH, LEVELS)  # [G, 1]
        low_weight = _norm_weight(q_norm, k_norm, dim, is_q, is_k, HALF)
        high_weight = _norm_weight(q_norm + HALF, k_norm + HALF, dim, is_q, is_k, HALF)
        low32 = apply_norm(low32, inverse, low_weight, dtype).to(tl.float32)
        high32 = apply_norm(high32, inverse, high_weight, dtype).to(tl.float32)
    row_cos = tl.load(cos + row.to(tl.int64) * HALF + dim, mask=dim < HALF, other=0.0)
    row_sin = tl.load(sin + row.to(tl.int64) * HALF + dim, mask=dim < HALF, other=0.0)
    rotated_low, rotated_high = _rotate(low32, high32, row_cos, row_sin)
    rotated_low, rotated_high = rotated_low.to(dtype), rotated_high.to(dtype)
    offset = q + row.to(tl.int64) * (HEADS * WIDTH) + column
    tl.store(offset, rotated_low, mask=mask & is_q)
    tl.store(offset + HALF, rotated_high, mask=mask & is_q)
    k_head, v_head = head - HEADS, head - HEADS - KV_HEADS
    in_k, in_v = mask & is_k, mask & is_v
    _store_head(keys, slot, k_head, dim, rotated_low, in_k, key_page, key_head, key_dim, key_slot, PAGE)
    _store_head(
        keys, slot, k_head, HALF + dim, rotated_high, in_k, key_page, key_head, key_dim, key_slot, PAGE
    )
    _store_head(values, slot, v_head, dim, low, in_v, value_page, value_head, value_dim, value_slot, PAGE)
    _store_head(
        values, slot, v_head, HALF + dim, high, in_v, value_page, value_head, value_dim, value_slot, PAGE
    )


@triton.jit
def _norm_weight(q_norm, k_norm, dim, is_q, is_k, HALF: tl.constexpr):
    """The norm's weights for each head of a group, [G, BLOCK]; 0 for v, which has no norm."""
    for_q = tl.load(q_norm + dim, mask=is_q & (dim < HALF), other=0.0)
    return tl.where(is_q, for_q, tl.load(k_norm + dim, mask=is_k & (dim < HALF), other=0.0))


@triton.jit
def _rope(
    x, cos, sin, stride_row, stride_head, stride_dim,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * GROUP + tl.arange(0, GROUP))[:, None]
    dim = tl.arange(0, BLOCK)[None, :]
    mask = (head < HEADS) & (dim < HALF)
    offset = x + row * stride_row + head * stride_head + dim * stride_dim
    low, high = (
        tl.load(offset, mask=mask, other=0.0),
        tl.load(offset + HALF * stride_dim, mask=mask, other=0.0),
    )
    row_cos = tl.load(cos + row * HALF + dim, mask=dim < HALF, other=0.0)
    row_sin = tl.load(sin + row * HALF + dim, mask=dim < HALF, other=0.0)
    rotated_low, rotated_high = _rotate(low.to(tl.float32), high.to(tl.float32), row_cos, row_sin)
    tl.store(offset, rotated_low.to(low.dtype), mask=mask)
    tl.store(offset + HALF * stride_dim, rotated_high.to(low.dtype), mask=mask)


@triton.jit
def _store(
    k, v, keys, values, slots, k_row, k_head, k_dim, v_row, v_head, v_dim,
    key_page, key_head, key_dim, key_slot, value_page, value_head, value_slot, value_dim,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * GROUP + tl.arange(0, GROUP))[:, None]
    dim = tl.arange(0, BLOCK)[None, :]
    mask = (head < HEADS) & (dim < WIDTH)
    slot = tl.load(slots + row)
    key = tl.load(k + row * k_row + head * k_head + dim * k_dim, mask=mask, other=0.0)
    value = tl.load(v + row * v_row + head * v_head + dim * v_dim, mask=mask, other=0.0)
    _store_head(keys, slot, head, dim, key, mask, key_page, key_head, key_dim, key_slot, PAGE)
    _store_head(values, slot, head, dim, value, mask, value_page, value_head, value_dim, value_slot, PAGE)
