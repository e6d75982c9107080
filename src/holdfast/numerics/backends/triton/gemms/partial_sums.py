"""The result of a GEMM as the next kernel reads it: finished in the dtype, or fp32 partial sums of
a split-K GEMM; and the outputs of a token's experts.

    finished       dtype [rows, N]
    partial sums   fp32 [split_k, rows, N]   added in order of the splits, then the bias, then rounded once
    experts        dtype [tokens * top_k, N] of each token in the order of its top k, weights fp32 [tokens, top_k]
                   added in that order in fp32, each term by an fma, then the shared expert's row times
                   sigmoid(gate), then rounded once

The order of the additions is fixed, and a multiplication that feeds an addition is written as an
fma. So an element has the same bits in every kernel that computes it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@dataclass(frozen=True)
class PartialSums:
    """A GEMM result as kernel arguments.

    split_rows: rows from one split to the next. split_k 0: finished.
    """

    data: Tensor
    bias: Tensor  # fp32 [N]; not read without has_bias
    rows: int
    width: int
    split_rows: int
    split_k: int
    has_bias: bool


def as_partial_sums(data: Tensor, bias: Tensor | None) -> PartialSums:
    """Describe a GEMM result.

    The rows of a split must be contiguous; a finished result is made contiguous.
    """
    *_, rows, width = data.shape
    is_finished = data.dim() == 2
    if is_finished and not data.is_contiguous():
        data = data.contiguous()
    assert is_finished or (data.dtype is torch.float32 and data.stride()[1:] == (width, 1)), (
        "rows are not contiguous"
    )
    split_rows = 0 if is_finished else data.stride(0) // max(width, 1)
    assert is_finished or split_rows * width == data.stride(0) or data.shape[0] == 1
    assert bias is None or (bias.dtype is torch.float32 and bias.shape == (width,))
    split_k = 0 if is_finished else data.shape[0]
    return PartialSums(
        data, data if bias is None else bias, rows, width, split_rows, split_k, bias is not None
    )


def reduce(data: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Add the partial sums and the bias: [rows, N] in `dtype`."""
    partial = as_partial_sums(data, bias)
    if partial.split_k == 0 and bias is None and data.dtype is dtype:
        return data
    if partial.split_k == 1 and bias is None and dtype is torch.float32:
        return data[0]
    out = torch.empty((partial.rows, partial.width), dtype=dtype, device=data.device)
    if out.numel():
        _reduce_partial_sums[(partial.rows, triton.cdiv(partial.width, _BLOCK))](
            *(out, partial.data, partial.bias, partial.split_rows),
            WIDTH=partial.width, SPLIT_K=partial.split_k, HAS_BIAS=partial.has_bias, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def load_sum(
    data,
    bias,
    row,
    column,
    mask,
    split_rows,
    WIDTH: tl.constexpr,
    SPLIT_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Some columns of one row of a GEMM result, in fp32; the caller rounds.

    mask and column have one shape.
    """
    offset = row.to(tl.int64) * WIDTH + column
    total = tl.load(data + offset, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLIT_K):
        total += tl.load(data + split * split_rows.to(tl.int64) * WIDTH + offset, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=mask, other=0.0)
    return total


@triton.jit(do_not_specialize=["split_rows"])
def _reduce_partial_sums(
    out, data, bias, split_rows,
    WIDTH: tl.constexpr, SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    total = load_sum(data, bias, row, column, mask, split_rows, WIDTH, SPLIT_K, HAS_BIAS)
    tl.store(out + row.to(tl.int64) * WIDTH + column, total.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class ExpertOutputs:
    """shared [tokens, hidden] and gate fp32 [tokens, 1]: of an expert that sees all tokens."""

    outputs: Tensor
    weights: Tensor
    shared: Tensor | None = None
    gate: Tensor | None = None

    @property
    def top_k(self) -> int:
        return self.weights.shape[1]

    @property
    def shared_or_any(self) -> Tensor:
        """As a kernel argument; not read without a shared expert."""
        return self.outputs if self.shared is None else self.shared

    @property
    def gate_or_any(self) -> Tensor:
        return self.weights if self.gate is None else self.gate


@triton.jit
def load_expert_sum(
    outputs, weights, shared, gate, row, column, mask,
    WIDTH: tl.constexpr, TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr,
):  # fmt: skip
    """Some columns of one row, in fp32; the caller rounds. mask and column have one shape."""
    row = row.to(tl.int64)
    total = tl.zeros(column.shape, tl.float32)
    for number in tl.static_range(TOP_K):
        pair = row * TOP_K + number
        value = tl.load(outputs + pair * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
        total = tl.fma(value, tl.load(weights + pair) + tl.zeros_like(value), total)
    if HAS_SHARED:
        value = tl.load(shared + row * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
        logit = tl.load(gate + row) + tl.zeros_like(value)
        total = tl.fma(value, tl.math.div_rn(tl.zeros_like(value) + 1.0, 1.0 + tl.exp(-logit)), total)
    return total
