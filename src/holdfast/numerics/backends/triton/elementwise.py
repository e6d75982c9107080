"""Elementwise kernels: the embedding lookup, and SwiGLU after the gate-up GEMM, rounded(silu(gate))
* up."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch
from holdfast.numerics.backends.triton.partial_sums import as_partial_sums, load_sum

_SILU_BLOCK = 2048
_EMBED_BLOCK = 2048


def silu_mul(data: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The gate-up GEMM's result [rows, 2 I], gate first -> [rows, I]."""
    partial = as_partial_sums(data, bias)
    assert partial.width % 2 == 0
    out = torch.empty((partial.rows, partial.width // 2), dtype=dtype, device=data.device)
    if out.numel():
        _silu_mul[(partial.rows, triton.cdiv(partial.width // 2, _SILU_BLOCK))](
            *(out, partial.data, partial.bias, partial.split_rows),
            WIDTH=partial.width // 2, SPLIT_K=partial.split_k, HAS_BIAS=partial.has_bias, BLOCK=_SILU_BLOCK,
            num_warps=4, **pdl_launch,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["split_rows"])
def _silu_mul(
    out, data, bias, split_rows,
    WIDTH: tl.constexpr, SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    dtype = out.dtype.element_ty
    gate = load_sum(data, bias, row, column, mask, split_rows, 2 * WIDTH, SPLIT_K, HAS_BIAS)
    up = load_sum(data, bias, row, WIDTH + column, mask, split_rows, 2 * WIDTH, SPLIT_K, HAS_BIAS)
    tl.store(out + row.to(tl.int64) * WIDTH + column, silu_times(gate.to(dtype), up.to(dtype)), mask=mask)


@triton.jit
def silu_times(gate, up):
    """rounded(silu(gate)) * up, in their dtype."""
    gate32 = gate.to(tl.float32)
    activated = (gate32 / (1.0 + tl.exp(-gate32))).to(gate.dtype).to(tl.float32)
    return (activated * up.to(tl.float32)).to(gate.dtype)


def embed(table: Tensor, token_ids: Tensor) -> Tensor:
    """table [V, D], token_ids int64 [rows] -> [rows, D]; a negative id reads row 0."""
    rows, width = token_ids.shape[0], table.shape[1]
    assert table.is_contiguous() and token_ids.is_contiguous()
    out = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    if rows:
        block = min(_EMBED_BLOCK, int(triton.next_power_of_2(width)))
        _embed[(rows, triton.cdiv(width, block))](
            out, table, token_ids, WIDTH=width, BLOCK=block, num_warps=4
        )
    return out


@triton.jit
def _embed(out, table, token_ids, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    token = tl.maximum(tl.load(token_ids + row), 0)
    tl.store(out + row * WIDTH + column, tl.load(table + token * WIDTH + column, mask=mask), mask=mask)
