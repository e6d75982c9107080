"""SiLU of one half of a product times the other: rounded(silu(gate)) * up."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.launch import in_turn, take_turn
from holdfast.numerics.backends.triton.partial_sums import parts_of, summed

_BLOCK = 2048


def silu_mul(data: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The product [rows, 2 I], gate beside up -> [rows, I]."""
    parts = parts_of(data, bias)
    assert parts.width % 2 == 0
    out = torch.empty((parts.rows, parts.width // 2), dtype=dtype, device=data.device)
    if out.numel():
        _silu_mul[(parts.rows, triton.cdiv(parts.width // 2, _BLOCK))](
            *(out, parts.data, parts.bias, parts.part_rows),
            WIDTH=parts.width // 2, SLICES=parts.slices, HAS_BIAS=parts.has_bias, BLOCK=_BLOCK, num_warps=4, **in_turn,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["part_rows"])
def _silu_mul(
    out, data, bias, part_rows,
    WIDTH: tl.constexpr, SLICES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    take_turn(TURNS)
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    dtype = out.dtype.element_ty
    gate = summed(data, bias, row, column, mask, part_rows, 2 * WIDTH, SLICES, HAS_BIAS)
    up = summed(data, bias, row, WIDTH + column, mask, part_rows, 2 * WIDTH, SLICES, HAS_BIAS)
    tl.store(out + row.to(tl.int64) * WIDTH + column, gated(gate.to(dtype), up.to(dtype)), mask=mask)


@triton.jit
def gated(gate, up):
    """rounded(silu(gate)) * up, in their dtype."""
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    return (active * up.to(tl.float32)).to(gate.dtype)
