"""Products of few rows: bound by reading the weights once, so everything is arranged around that.

The weights are the first factor and the rows the second, 16 or 32 of them: tensor cores multiply 64 outputs by as few as
eight rows. K is walked in order, in one chain an output (one a slice), as the library's kernels walk it, and the bits are the
same; the certificate checks that. A program reads its first weights before its turn comes: they depend on nobody.

    multiply_few     x [rows, K] -> the product, finished or in parts
    gate_up_few      x [rows, K] -> rounded(silu(gate)) * up, without writing gate and up
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.activation import gated
from holdfast.numerics.backends.triton.launch import await_last, in_turn, let_next

MAX_ROWS = 32
_BLOCK_N = 64
_MIN_PROGRAMS = 48  # with fewer, the library's own split of the work reads faster
_ROOM = 65536  # numbers on their way to a program


def takes(rows: int, weight: Tensor, split_k: int) -> bool:
    """Whether these kernels are made for such a product."""
    outputs, width = weight.shape
    part = width // max(1, split_k)
    return (
        rows <= MAX_ROWS
        and weight.element_size() == 2
        and outputs % _BLOCK_N == 0
        and part % 64 == 0
        and outputs // _BLOCK_N * max(1, split_k) >= _MIN_PROGRAMS
    )


def multiply_few(x: Tensor, weight: Tensor, split_k: int) -> Tensor:
    """x [rows, K], weight [N, K] -> finished [rows, N], or fp32 parts [split_k, rows, N]."""
    rows, width = x.shape
    outputs = weight.shape[0]
    part = width // max(1, split_k)
    block_k = _block_k(rows, part)
    parts = (split_k, rows, outputs)
    out = x.new_empty(parts, dtype=torch.float32) if split_k else x.new_empty(parts[1:])
    _multiply_few[(outputs // _BLOCK_N, max(1, split_k))](
        *(out, x, weight, outputs, width, rows, part), BLOCK_M=_block_m(rows), BLOCK_N=_BLOCK_N, BLOCK_K=block_k,
        STAGES=_stages(rows, block_k, 1), num_warps=4, **in_turn,
    )  # fmt: skip
    return out


def gate_up_few(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, K], weight [2 I, K], gate first -> [rows, I]."""
    rows, width = x.shape
    inner = weight.shape[0] // 2
    block_k = min(128, _block_k(rows, width))
    out = x.new_empty((rows, inner))
    _gate_up_few[(inner // _BLOCK_N,)](
        *(out, x, weight, inner, width, rows), BLOCK_M=_block_m(rows), BLOCK_N=_BLOCK_N, BLOCK_K=block_k,
        STAGES=_stages(rows, block_k, 2), num_warps=4, **in_turn,
    )  # fmt: skip
    return out


def _block_m(rows: int) -> int:
    return max(16, int(triton.next_power_of_2(rows)))


def _block_k(rows: int, part: int) -> int:
    """Measured: up to 16 rows long blocks, then shorter ones and more of them on their way."""
    return next(size for size in ((256, 128, 64) if rows <= 16 else (128, 64)) if part % size == 0)


def _stages(rows: int, block_k: int, tiles: int) -> int:
    return max(2, min(5, _ROOM // ((tiles * _BLOCK_N + _block_m(rows)) * block_k)))


# Compiled once for all models and numbers of rows: the first start of an engine waits for every variant.
@triton.jit(do_not_specialize=["rows"])
def _multiply_few(
    out, x, weight, outputs, width, rows, part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    let_next(TURNS)
    piece = tl.program_id(1)
    n, m, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    weights = weight + n[:, None].to(tl.int64) * width + piece * part + k[None, :]
    inputs = x + m[None, :] * width + piece * part + k[:, None]
    real = m[None, :] < rows
    block = tl.load(weights)  # [N, K]
    await_last(TURNS)
    total = tl.dot(block, tl.load(inputs, mask=real, other=0.0), input_precision="ieee")  # [N, M]
    for at in tl.range(BLOCK_K, part, BLOCK_K, num_stages=STAGES):
        block = tl.load(weights + at)
        total = tl.dot(block, tl.load(inputs + at, mask=real, other=0.0), total, input_precision="ieee")
    place = (piece * rows + m[None, :]).to(tl.int64) * outputs + n[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["rows"])
def _gate_up_few(
    out, x, weight, inner, width, rows,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    let_next(TURNS)
    n, m, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    gates = weight + n[:, None].to(tl.int64) * width + k[None, :]
    ups = gates + inner.to(tl.int64) * width
    inputs = x + m[None, :] * width + k[:, None]
    real = m[None, :] < rows
    gate_block, up_block = tl.load(gates), tl.load(ups)
    await_last(TURNS)
    some = tl.load(inputs, mask=real, other=0.0)  # [K, M]
    gate = tl.dot(gate_block, some, input_precision="ieee")  # [N, M]
    up = tl.dot(up_block, some, input_precision="ieee")
    for at in tl.range(BLOCK_K, width, BLOCK_K, num_stages=STAGES):
        some = tl.load(inputs + at, mask=real, other=0.0)
        gate = tl.dot(tl.load(gates + at), some, gate, input_precision="ieee")
        up = tl.dot(tl.load(ups + at), some, up, input_precision="ieee")
    dtype = out.dtype.element_ty
    found = gated(gate.to(dtype), up.to(dtype))
    tl.store(out + m[None, :].to(tl.int64) * inner + n[:, None], found, mask=real)
