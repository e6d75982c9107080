"""RMS norm, alone and behind a residual addition: one program a row.

The sum of squares is a tree of its own making, not the compiler's. A row of W is folded in the middle, again and again while
it is long, and what is left added up pair by pair:

    s[i] = x[i]^2 + x[i + half]^2        half = W / 2, rounded up; zeros behind it up to a power of two
    s[i] = s[i] + s[i + n / 2]           while n, how many are left, is more than 1024
    s[i] = s[2 i] + s[2 i + 1]           until one is left

So a norm has the same bits in every kernel that takes one, whatever else that kernel does and however its registers lie.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.launch import in_turn, take_turn
from holdfast.numerics.backends.triton.partial_sums import parts_of, summed


class Fold(NamedTuple):
    """How a row of some width is taken: where it is folded, 2^levels lanes for a half, and by how many warps."""

    half: int
    lanes: int
    levels: int
    warps: int


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [rows, D] or [rows, heads, D] -> the same shape: rounded(x / rms(x)) * weight."""
    x = x.contiguous()
    width = x.shape[-1]
    assert weight.shape == (width,) and weight.dtype is x.dtype
    out = torch.empty_like(x)
    if out.numel():
        fold = fold_of(width)
        _rms_norm[(out.numel() // width,)](
            *(out, x, weight, eps),
            WIDTH=width, HALF=fold.half, LANES=fold.lanes, LEVELS=fold.levels, num_warps=fold.warps, **in_turn,
        )  # fmt: skip
    return out


def add_rms_norm(
    residual: Tensor, data: Tensor, bias: Tensor | None, weight: Tensor, eps: float, out: Tensor | None = None
) -> Tensor:
    """residual [rows, D] += the product, both rounded, in place; returns its rms_norm, in `out` where one is given."""
    parts = parts_of(data, bias)
    rows, width = residual.shape
    assert residual.is_contiguous()
    assert (parts.rows, parts.width) == (rows, width) and weight.shape == (width,)
    assert weight.dtype is residual.dtype
    out = torch.empty_like(residual) if out is None else out
    assert out.is_contiguous() and out.dtype is residual.dtype
    if out.numel():
        fold = fold_of(width)
        _add_rms_norm[(rows,)](
            *(out, residual, parts.data, parts.bias, weight, eps, parts.part_rows),
            WIDTH=width, HALF=fold.half, LANES=fold.lanes, LEVELS=fold.levels, SLICES=parts.slices,
            HAS_BIAS=parts.has_bias, num_warps=fold.warps, **in_turn,
        )  # fmt: skip
    return out


def fold_of(width: int) -> Fold:
    half = -(-width // 2)
    lanes = int(triton.next_power_of_2(half))
    return Fold(half, lanes, lanes.bit_length() - 1, max(1, min(4, lanes // 256)))


@triton.jit
def inverse_rms(low, high, eps, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """low, high fp32 [groups, 2^LEVELS], the two halves of rows of WIDTH -> 1 / rms, [groups, 1]."""
    total = tl.fma(low, low, high * high)
    for _ in tl.static_range(10, LEVELS):
        halves = tl.reshape(total, [total.shape[0], 2, total.shape[1] // 2])
        first, second = tl.split(tl.permute(halves, (0, 2, 1)))
        total = first + second
    for _ in tl.static_range(LEVELS if LEVELS < 10 else 10):
        first, second = tl.split(tl.reshape(total, [total.shape[0], total.shape[1] // 2, 2]))
        total = first + second
    return tl.math.rsqrt(tl.fma(total, 1.0 / WIDTH, eps))


@triton.jit
def scaled(x, inverse, weight):
    """fp32 x / rms, rounded to the weight's dtype, times weight, rounded again."""
    unit = (x * inverse).to(weight.dtype).to(tl.float32)
    return (unit * weight.to(tl.float32)).to(weight.dtype)


@triton.jit
def _rms_norm(
    out, x, weight, eps, WIDTH: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    take_turn(TURNS)
    at = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, LANES)[None, :]  # [1, LANES]
    in_low, in_high = column < HALF, HALF + column < WIDTH
    low = tl.load(x + at + column, mask=in_low, other=0.0).to(tl.float32)
    high = tl.load(x + at + HALF + column, mask=in_high, other=0.0).to(tl.float32)
    inverse = inverse_rms(low, high, eps, WIDTH, LEVELS)
    low_weight = tl.load(weight + column, mask=in_low, other=0.0)
    high_weight = tl.load(weight + HALF + column, mask=in_high, other=0.0)
    tl.store(out + at + column, scaled(low, inverse, low_weight), mask=in_low)
    tl.store(out + at + HALF + column, scaled(high, inverse, high_weight), mask=in_high)


@triton.jit(do_not_specialize=["part_rows"])
def _add_rms_norm(
    out, residual, data, bias, weight, eps, part_rows,
    WIDTH: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr, SLICES: tl.constexpr,
    HAS_BIAS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    take_turn(TURNS)
    row = tl.program_id(0)
    at = row.to(tl.int64) * WIDTH
    column = tl.arange(0, LANES)[None, :]  # [1, LANES]
    in_low, in_high = column < HALF, HALF + column < WIDTH
    low_weight = tl.load(weight + column, mask=in_low, other=0.0)
    high_weight = tl.load(weight + HALF + column, mask=in_high, other=0.0)
    low = tl.load(residual + at + column, mask=in_low, other=0.0)
    high = tl.load(residual + at + HALF + column, mask=in_high, other=0.0)
    low_delta = summed(data, bias, row, column, in_low, part_rows, WIDTH, SLICES, HAS_BIAS)
    high_delta = summed(data, bias, row, HALF + column, in_high, part_rows, WIDTH, SLICES, HAS_BIAS)
    low = (low.to(tl.float32) + low_delta.to(low.dtype).to(tl.float32)).to(low.dtype)
    high = (high.to(tl.float32) + high_delta.to(high.dtype).to(tl.float32)).to(high.dtype)
    tl.store(residual + at + column, low, mask=in_low)
    tl.store(residual + at + HALF + column, high, mask=in_high)
    inverse = inverse_rms(low.to(tl.float32), high.to(tl.float32), eps, WIDTH, LEVELS)
    tl.store(out + at + column, scaled(low.to(tl.float32), inverse, low_weight), mask=in_low)
    tl.store(out + at + HALF + column, scaled(high.to(tl.float32), inverse, high_weight), mask=in_high)
