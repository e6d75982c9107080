"""Rows of an embedding table."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


def embed(table: Tensor, token_ids: Tensor) -> Tensor:
    """table [V, D], token_ids int64 [rows] -> [rows, D]; an id below 0 reads as 0."""
    rows, width = token_ids.shape[0], table.shape[1]
    assert table.is_contiguous() and token_ids.is_contiguous()
    out = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    if rows:
        block = min(_BLOCK, int(triton.next_power_of_2(width)))
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
