"""RMS norm, alone and after the residual addition: one program per row.

The sum of squares is a reduction tree written out here, so the compiler does not choose its order.
A row of W elements is folded in the middle, repeatedly while it is long; the rest is added in
pairs:

    s[i] = x[i]^2 + x[i + half]^2        half = W / 2, rounded up; then padded with zeros to a power of two
    s[i] = s[i] + s[i + n / 2]           while more than n = 1024 are left
    s[i] = s[2 i] + s[2 i + 1]           until one is left

So a norm has the same bits in every kernel that computes one. A centered norm subtracts the mean
first; its sum has the same order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.gemms.partial_sums import (
    ExpertOutputs,
    as_partial_sums,
    load_expert_sum,
    load_sum,
)
from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch


class RowLayout(NamedTuple):
    """How a program holds a row: the fold in the middle, a block of 2^levels elements for each
    half, and its warps."""

    half: int
    block: int
    levels: int
    warps: int


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, centered: bool = False) -> Tensor:
    """x [rows, D] or [rows, heads, D] -> the same shape: rounded(x / rms(x)) * weight."""
    x = x.contiguous()
    width = x.shape[-1]
    assert weight.shape == (width,) and weight.dtype in (x.dtype, torch.float32)
    out = x.new_empty(x.shape)
    if out.numel():
        layout = row_layout(width)
        _rms_norm[(out.numel() // width,)](
            *(out, x, weight, eps),
            WIDTH=width, HALF=layout.half, BLOCK=layout.block, LEVELS=layout.levels, CENTERED=centered,
            num_warps=layout.warps, **pdl_launch,
        )  # fmt: skip
    return out


def add_rms_norm(
    residual: Tensor,
    data: Tensor | ExpertOutputs,
    bias: Tensor | None,
    weight: Tensor | None,
    eps: float,
    out: Tensor | None = None,
    *,
    delta_norm: Tensor | None = None,
    delta_scale: float = 1.0,
    centered: bool = False,
) -> Tensor:
    """residual [rows, D] += the GEMM result or the sum of experts, both rounded, in place.

    Returns its rms_norm, in `out` if given; without a weight a copy. Before the addition the GEMM
    result is normed by delta_norm and multiplied by delta_scale, and rounded after each.
    """
    experts = data if isinstance(data, ExpertOutputs) else None
    partial = as_partial_sums(data.outputs if isinstance(data, ExpertOutputs) else data, bias)
    rows, width = residual.shape
    assert residual.is_contiguous()
    assert (partial.rows, partial.width) == (rows * (1 if experts is None else experts.top_k), width)
    for norm in (weight, delta_norm):
        assert norm is None or (norm.shape == (width,) and norm.dtype in (residual.dtype, torch.float32))
    out = residual.new_empty(residual.shape) if out is None else out
    assert out.is_contiguous() and out.dtype is residual.dtype
    if out.numel():
        layout = row_layout(width)
        _add_rms_norm[(rows,)](
            *(out, residual, partial.data, partial.bias, residual if weight is None else weight),
            *(residual if delta_norm is None else delta_norm, eps, delta_scale, partial.split_rows),
            *((partial.data,) * 3 if experts is None else (experts.weights, experts.shared_or_any, experts.gate_or_any)),
            TOP_K=0 if experts is None else experts.top_k, HAS_SHARED=experts is not None and experts.shared is not None,
            WIDTH=width, HALF=layout.half, BLOCK=layout.block, LEVELS=layout.levels, SPLIT_K=partial.split_k,
            HAS_BIAS=partial.has_bias, NORMED=weight is not None, DELTA_NORMED=delta_norm is not None,
            SCALED=delta_scale != 1.0, CENTERED=centered, num_warps=layout.warps, **pdl_launch,
        )  # fmt: skip
    return out


def row_layout(width: int) -> RowLayout:
    half = -(-width // 2)
    block = int(triton.next_power_of_2(half))
    return RowLayout(half, block, block.bit_length() - 1, max(1, min(4, block // 256)))


@triton.jit
def inverse_rms(low, high, eps, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """low, high fp32 [groups, 2^LEVELS], the two halves of rows of WIDTH -> 1 / rms, [groups, 1]."""
    total = row_sum(tl.fma(low, low, high * high), LEVELS)
    return tl.math.rsqrt(tl.fma(total, 1.0 / WIDTH, eps))


@triton.jit
def row_sum(total, LEVELS: tl.constexpr):
    """fp32 [groups, 2^LEVELS] -> [groups, 1]."""
    for _ in tl.static_range(10, LEVELS):
        halves = tl.reshape(total, [total.shape[0], 2, total.shape[1] // 2])
        first, second = tl.split(tl.permute(halves, (0, 2, 1)))
        total = first + second
    for _ in tl.static_range(LEVELS if LEVELS < 10 else 10):
        first, second = tl.split(tl.reshape(total, [total.shape[0], total.shape[1] // 2, 2]))
        total = first + second
    return total


@triton.jit
def apply_norm(x, inverse, weight, dtype: tl.constexpr):
    """fp32 x / rms, rounded to the weight's dtype, times weight, rounded to `dtype`."""
    unit = (x * inverse).to(weight.dtype).to(tl.float32)
    return (unit * weight.to(tl.float32)).to(dtype)


@triton.jit
def _norm_halves(
    low, high, weight, eps, column, in_low, in_high, dtype: tl.constexpr,
    WIDTH: tl.constexpr, HALF: tl.constexpr, LEVELS: tl.constexpr, CENTERED: tl.constexpr,
):  # fmt: skip
    """The norm of a row, given as its two halves in fp32, in `dtype`."""
    if CENTERED:
        total = row_sum(low + high, LEVELS)
        low = tl.where(in_low, tl.fma(total, -1.0 / WIDTH, low), 0.0)
        high = tl.where(in_high, tl.fma(total, -1.0 / WIDTH, high), 0.0)
    inverse = inverse_rms(low, high, eps, WIDTH, LEVELS)
    low_weight = tl.load(weight + column, mask=in_low, other=0.0)
    high_weight = tl.load(weight + HALF + column, mask=in_high, other=0.0)
    return apply_norm(low, inverse, low_weight, dtype), apply_norm(high, inverse, high_weight, dtype)


@triton.jit
def _rms_norm(
    out, x, weight, eps, WIDTH: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
    CENTERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    offset = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_low, in_high = column < HALF, HALF + column < WIDTH
    low = tl.load(x + offset + column, mask=in_low, other=0.0).to(tl.float32)
    high = tl.load(x + offset + HALF + column, mask=in_high, other=0.0).to(tl.float32)
    low_normed, high_normed = _norm_halves(
        low, high, weight, eps, column, in_low, in_high, out.dtype.element_ty, WIDTH, HALF, LEVELS, CENTERED
    )
    tl.store(out + offset + column, low_normed, mask=in_low)
    tl.store(out + offset + HALF + column, high_normed, mask=in_high)


@triton.jit(do_not_specialize=["split_rows"])
def _add_rms_norm(
    out, residual, data, bias, weight, delta_norm, eps, delta_scale, split_rows, expert_weights, shared, gate,
    TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr,
    WIDTH: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, SPLIT_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, NORMED: tl.constexpr, DELTA_NORMED: tl.constexpr, SCALED: tl.constexpr,
    CENTERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0)
    offset = row.to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_low, in_high = column < HALF, HALF + column < WIDTH
    low = tl.load(residual + offset + column, mask=in_low, other=0.0)
    high = tl.load(residual + offset + HALF + column, mask=in_high, other=0.0)
    dtype: tl.constexpr = residual.dtype.element_ty
    if TOP_K:
        low_delta = load_expert_sum(
            data, expert_weights, shared, gate, row, column, in_low, WIDTH, TOP_K, HAS_SHARED
        )
        high_delta = load_expert_sum(
            data, expert_weights, shared, gate, row, HALF + column, in_high, WIDTH, TOP_K, HAS_SHARED
        )
    else:
        low_delta = load_sum(data, bias, row, column, in_low, split_rows, WIDTH, SPLIT_K, HAS_BIAS)
        high_delta = load_sum(data, bias, row, HALF + column, in_high, split_rows, WIDTH, SPLIT_K, HAS_BIAS)
    low_delta, high_delta = low_delta.to(dtype), high_delta.to(dtype)
    if DELTA_NORMED:
        low_delta, high_delta = _norm_halves(
            low_delta.to(tl.float32), high_delta.to(tl.float32), delta_norm, eps, column, in_low, in_high,
            dtype, WIDTH, HALF, LEVELS, CENTERED,
        )  # fmt: skip
    if SCALED:
        low_delta = (low_delta.to(tl.float32) * delta_scale).to(dtype)
        high_delta = (high_delta.to(tl.float32) * delta_scale).to(dtype)
    low = (low.to(tl.float32) + low_delta.to(tl.float32)).to(dtype)
    high = (high.to(tl.float32) + high_delta.to(tl.float32)).to(dtype)
    tl.store(residual + offset + column, low, mask=in_low)
    tl.store(residual + offset + HALF + column, high, mask=in_high)
    if NORMED:
        low, high = _norm_halves(
            low.to(tl.float32), high.to(tl.float32), weight, eps, column, in_low, in_high,
            dtype, WIDTH, HALF, LEVELS, CENTERED,
        )  # fmt: skip
    tl.store(out + offset + column, low, mask=in_low)
    tl.store(out + offset + HALF + column, high, mask=in_high)
