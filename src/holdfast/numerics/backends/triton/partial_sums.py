"""What a product leaves behind and every kernel behind one takes up: finished in the dtype, or parts to be added in order.

    finished   dtype [rows, N]
    parts      fp32 [slices, rows, N]   slice 0 + slice 1 + .., then the bias, then rounded once

An addend has its place in the order, a multiplication that feeds an addition is written as an fma: so the bits of an element
are those of its formula, whichever kernel computes it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@dataclass(frozen=True)
class Parts:
    """A product as a kernel is told of it. part_rows: rows from one slice to the next; slices 0: finished."""

    data: Tensor
    bias: Tensor  # read only where there is one
    rows: int
    width: int
    part_rows: int
    slices: int
    has_bias: bool


def parts_of(data: Tensor, bias: Tensor | None) -> Parts:
    """Looks at a product. Columns lie together, so do a slice's rows; a finished product's rows are made to."""
    *_, rows, width = data.shape
    finished = data.dim() == 2
    if finished and not data.is_contiguous():
        data = data.contiguous()
    assert finished or (data.dtype is torch.float32 and data.stride()[1:] == (width, 1)), "parts lie in rows"
    part_rows = 0 if finished else data.stride(0) // max(width, 1)
    assert finished or part_rows * width == data.stride(0) or data.shape[0] == 1
    assert bias is None or (bias.dtype is torch.float32 and bias.shape == (width,))
    slices = 0 if finished else data.shape[0]
    return Parts(data, data if bias is None else bias, rows, width, part_rows, slices, bias is not None)


def finish(data: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The product in `dtype`, [rows, N]."""
    parts = parts_of(data, bias)
    if parts.slices == 0 and bias is None and data.dtype is dtype:
        return data
    if parts.slices == 1 and bias is None and dtype is torch.float32:
        return data[0]
    out = torch.empty((parts.rows, parts.width), dtype=dtype, device=data.device)
    if out.numel():
        _finish[(parts.rows, triton.cdiv(parts.width, _BLOCK))](
            *(out, parts.data, parts.bias, parts.part_rows),
            WIDTH=parts.width, SLICES=parts.slices, HAS_BIAS=parts.has_bias, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def summed(
    data,
    bias,
    row,
    column,
    mask,
    part_rows,
    WIDTH: tl.constexpr,
    SLICES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Columns of one row of a product, in fp32; the caller rounds. mask and column have one shape."""
    at = row.to(tl.int64) * WIDTH + column
    total = tl.load(data + at, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, SLICES):
        total += tl.load(data + part * part_rows.to(tl.int64) * WIDTH + at, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=mask, other=0.0)
    return total


@triton.jit(do_not_specialize=["part_rows"])
def _finish(
    out, data, bias, part_rows,
    WIDTH: tl.constexpr, SLICES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    total = summed(data, bias, row, column, mask, part_rows, WIDTH, SLICES, HAS_BIAS)
    tl.store(out + row.to(tl.int64) * WIDTH + column, total.to(out.dtype.element_ty), mask=mask)
