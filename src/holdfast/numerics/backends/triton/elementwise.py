"""Elementwise kernels: the embedding lookup, the gated activation after the gate-up GEMM
(rounded(silu(gate)) * up, or with GELU; the clamped SwiGLU), the soft cap of logits, and tanh."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.gemms.partial_sums import as_partial_sums, load_sum
from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch

_SILU_BLOCK = 2048
_EMBED_BLOCK = 2048
_CAP_BLOCK = 4096


def silu_mul(data: Tensor, bias: Tensor | None, dtype: torch.dtype, *, gelu: bool = False) -> Tensor:
    """The gate-up GEMM's result [rows, 2 I], gate first -> [rows, I]. gelu: GELU in its tanh form
    instead of SiLU."""
    partial = as_partial_sums(data, bias)
    assert partial.width % 2 == 0
    out = torch.empty((partial.rows, partial.width // 2), dtype=dtype, device=data.device)
    if out.numel():
        _silu_mul[(partial.rows, triton.cdiv(partial.width // 2, _SILU_BLOCK))](
            *(out, partial.data, partial.bias, partial.split_rows),
            WIDTH=partial.width // 2, SPLIT_K=partial.split_k, HAS_BIAS=partial.has_bias, BLOCK=_SILU_BLOCK,
            GELU=gelu, num_warps=4, **pdl_launch,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["split_rows"])
def _silu_mul(
    out, data, bias, split_rows,
    WIDTH: tl.constexpr, SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    dtype = out.dtype.element_ty
    gate = load_sum(data, bias, row, column, mask, split_rows, 2 * WIDTH, SPLIT_K, HAS_BIAS)
    up = load_sum(data, bias, row, WIDTH + column, mask, split_rows, 2 * WIDTH, SPLIT_K, HAS_BIAS)
    result = activated_times(gate.to(dtype), up.to(dtype), GELU)
    tl.store(out + row.to(tl.int64) * WIDTH + column, result, mask=mask)


@triton.jit
def activated_times(gate, up, GELU: tl.constexpr):
    """rounded(activation(gate)) * up, in their dtype."""
    return _gelu_times(gate, up) if GELU else silu_times(gate, up)


@triton.jit
def silu_times(gate, up):
    """rounded(silu(gate)) * up, in their dtype."""
    gate32 = gate.to(tl.float32)
    activated = (gate32 / (1.0 + tl.exp(-gate32))).to(gate.dtype).to(tl.float32)
    return (activated * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _gelu_times(gate, up):
    """rounded(gelu(gate)) * up, in their dtype: (1 + tanh(u)) / 2 is sigmoid(2 u)."""
    gate32 = gate.to(tl.float32)
    doubled = gate32 * tl.fma(gate32 * gate32, 0.0713548163, 1.5957691216)
    activated = (gate32 / (1.0 + tl.exp(-doubled))).to(gate.dtype).to(tl.float32)
    return (activated * up.to(tl.float32)).to(gate.dtype)


def swiglu_mul(
    data: Tensor, bias: Tensor | None, dtype: torch.dtype, *, alpha: float, limit: float
) -> Tensor:
    """The gate-up GEMM's result [rows, 2 I], gate first -> the clamped SwiGLU [rows, I], rounded
    once."""
    partial = as_partial_sums(data, bias)
    assert partial.width % 2 == 0
    out = torch.empty((partial.rows, partial.width // 2), dtype=dtype, device=data.device)
    if out.numel():
        _swiglu_mul[(partial.rows, triton.cdiv(partial.width // 2, _SILU_BLOCK))](
            *(out, partial.data, partial.bias, partial.split_rows, alpha, limit),
            WIDTH=partial.width // 2, SPLIT_K=partial.split_k, HAS_BIAS=partial.has_bias, BLOCK=_SILU_BLOCK,
            num_warps=4, **pdl_launch,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["split_rows", "alpha", "limit"])
def _swiglu_mul(
    out, data, bias, split_rows, alpha, limit,
    WIDTH: tl.constexpr, SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    dtype = out.dtype.element_ty
    gate = load_sum(data, bias, row, column, mask, split_rows, 2 * WIDTH, SPLIT_K, HAS_BIAS)
    up = load_sum(data, bias, row, WIDTH + column, mask, split_rows, 2 * WIDTH, SPLIT_K, HAS_BIAS)
    result = swiglu_times(gate.to(dtype), up.to(dtype), alpha, limit)
    tl.store(out + row.to(tl.int64) * WIDTH + column, result, mask=mask)


@triton.jit
def swiglu_times(gate, up, alpha, limit):
    """gate * sigmoid(alpha * gate) * (up + 1) of limited gate and up, rounded once to their dtype. NaN
    stays NaN: it is neither above nor below a limit."""
    gate32, up32 = gate.to(tl.float32), up.to(tl.float32)
    gate32 = tl.where(gate32 > limit, limit, gate32)
    up32 = tl.where(up32 > limit, limit, tl.where(up32 < -limit, -limit, up32))
    activated = gate32 / (1.0 + tl.exp(-(gate32 * alpha)))
    return (activated * (up32 + 1.0)).to(gate.dtype)


@triton.jit
def tanh(x):
    """tanh of fp32 x: a polynomial below 0.625, above it 1 - 2 / (e^2x + 1)."""
    size, x2 = tl.abs(x), x * x
    p = tl.fma(x2, -5.70498872745e-3, 2.06390887954e-2)
    p = tl.fma(p, x2, -5.37397155531e-2)
    p = tl.fma(p, x2, 1.33314422036e-1)
    p = tl.fma(p, x2, -3.33332819422e-1)
    large = 1.0 - 2.0 / (tl.exp(size + size) + 1.0)
    return tl.where(size < 0.625, tl.fma(p * x2, x, x), tl.where(x < 0, -large, large))


def soft_cap(logits: Tensor, cap: float) -> None:
    """logits fp32 [rows, V] = cap * tanh(logits / cap), in place."""
    assert logits.is_contiguous() and logits.dtype is torch.float32
    if logits.numel():
        rows, width = logits.shape
        _soft_cap[(rows, triton.cdiv(width, _CAP_BLOCK))](
            logits, cap, WIDTH=width, BLOCK=_CAP_BLOCK, num_warps=4
        )


@triton.jit
def _soft_cap(logits, cap, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + tl.program_id(0).to(tl.int64) * WIDTH + column
    x = tl.load(at, mask=column < WIDTH, other=0.0)
    tl.store(at, tanh(tl.math.div_rn(x, cap + tl.zeros_like(x))) * cap, mask=column < WIDTH)


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
