"""GEMMs with a small M (few rows). They are bound by the memory bandwidth of the weights.

The weights are the first operand of `tl.dot` and the rows the second, 16 or 32 of them: tensor
cores multiply 64 outputs by as few as eight rows. Each output is one chain over K in order (one
chain per split), as in the library's kernels. The bits are those of the library; certification
checks that. A program loads its first weights before it waits for the previous kernel, because no
kernel writes them.

    multiply   x [rows, K] -> the result, finished or as partial sums
    gate_up    x [rows, K] -> rounded(silu(gate)) * up, without writing gate and up
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.elementwise import activated_times
from holdfast.numerics.backends.triton.launch import pdl_launch, pdl_launch_next, pdl_wait

MAX_ROWS = 32
_BLOCK_N = 64
_MIN_PROGRAMS = 48  # with fewer programs the library's kernels read the weights faster
_MAX_IN_FLIGHT = 65536  # elements loaded ahead by one program


def supports(rows: int, weight: Tensor, split_k: int) -> bool:
    """Return whether these kernels can compute a GEMM of this shape, and do it faster than the library."""
    outputs, width = weight.shape
    split_len = width // max(1, split_k)
    return (
        rows <= MAX_ROWS
        and weight.element_size() == 2
        and outputs % _BLOCK_N == 0
        and split_len % 64 == 0
        and outputs // _BLOCK_N * max(1, split_k) >= _MIN_PROGRAMS
    )


def multiply(x: Tensor, weight: Tensor, split_k: int) -> Tensor:
    """x [rows, K], weight [N, K] -> finished [rows, N], or partial sums fp32 [split_k, rows, N]."""
    rows, width = x.shape
    outputs = weight.shape[0]
    split_len = width // max(1, split_k)
    block_k = _block_k(rows, split_len)
    shape = (split_k, rows, outputs)
    out = x.new_empty(shape, dtype=torch.float32) if split_k else x.new_empty(shape[1:])
    _small_m_gemm[(outputs // _BLOCK_N, max(1, split_k))](
        *(out, x, weight, outputs, width, rows, split_len), BLOCK_M=_block_m(rows), BLOCK_N=_BLOCK_N, BLOCK_K=block_k,
        STAGES=_stages(rows, block_k, 1), num_warps=4, **pdl_launch,
    )  # fmt: skip
    return out


def gate_up(x: Tensor, weight: Tensor, *, gelu: bool = False) -> Tensor:
    """x [rows, K], weight [2 I, K], gate first -> [rows, I]. gelu: GELU instead of SiLU."""
    rows, width = x.shape
    intermediate = weight.shape[0] // 2
    block_k = min(128, _block_k(rows, width))
    out = x.new_empty((rows, intermediate))
    _small_m_gate_up[(intermediate // _BLOCK_N,)](
        *(out, x, weight, intermediate, width, rows), BLOCK_M=_block_m(rows), BLOCK_N=_BLOCK_N, BLOCK_K=block_k,
        STAGES=_stages(rows, block_k, 2), GELU=gelu, num_warps=4, **pdl_launch,
    )  # fmt: skip
    return out


def _block_m(rows: int) -> int:
    return max(16, int(triton.next_power_of_2(rows)))


def _block_k(rows: int, split_len: int) -> int:
    """By measurement: long blocks for up to 16 rows, shorter ones and more pipeline stages above."""
    return next(size for size in ((256, 128, 64) if rows <= 16 else (128, 64)) if split_len % size == 0)


def _stages(rows: int, block_k: int, tiles: int) -> int:
    return max(2, min(5, _MAX_IN_FLIGHT // ((tiles * _BLOCK_N + _block_m(rows)) * block_k)))


# One compiled variant for all models and numbers of rows: the first start of an engine waits for
# each variant.
@triton.jit(do_not_specialize=["rows"])
def _small_m_gemm(
    out, x, weight, outputs, width, rows, split_len,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_launch_next(PDL)
    split = tl.program_id(1)
    n, m, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    weights = weight + n[:, None].to(tl.int64) * width + split * split_len + k[None, :]
    inputs = x + m[None, :] * width + split * split_len + k[:, None]
    row_mask = m[None, :] < rows
    block = tl.load(weights)  # [N, K]
    pdl_wait(PDL)
    total = tl.dot(block, tl.load(inputs, mask=row_mask, other=0.0), input_precision="ieee")  # [N, M]
    for start in tl.range(BLOCK_K, split_len, BLOCK_K, num_stages=STAGES):
        block = tl.load(weights + start)
        total = tl.dot(
            block, tl.load(inputs + start, mask=row_mask, other=0.0), total, input_precision="ieee"
        )
    place = (split * rows + m[None, :]).to(tl.int64) * outputs + n[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=row_mask)


@triton.jit(do_not_specialize=["rows"])
def _small_m_gate_up(
    out, x, weight, intermediate, width, rows,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, GELU: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_launch_next(PDL)
    n, m, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    gates = weight + n[:, None].to(tl.int64) * width + k[None, :]
    ups = gates + intermediate.to(tl.int64) * width
    inputs = x + m[None, :] * width + k[:, None]
    row_mask = m[None, :] < rows
    gate_block, up_block = tl.load(gates), tl.load(ups)
    pdl_wait(PDL)
    block_x = tl.load(inputs, mask=row_mask, other=0.0)  # [K, M]
    gate = tl.dot(gate_block, block_x, input_precision="ieee")  # [N, M]
    up = tl.dot(up_block, block_x, input_precision="ieee")
    for start in tl.range(BLOCK_K, width, BLOCK_K, num_stages=STAGES):
        block_x = tl.load(inputs + start, mask=row_mask, other=0.0)
        gate = tl.dot(tl.load(gates + start), block_x, gate, input_precision="ieee")
        up = tl.dot(tl.load(ups + start), block_x, up, input_precision="ieee")
    dtype = out.dtype.element_ty
    result = activated_times(gate.to(dtype), up.to(dtype), GELU)
    tl.store(out + m[None, :].to(tl.int64) * intermediate + n[:, None], result, mask=row_mask)
