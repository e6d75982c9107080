"""The GEMMs of experts: each row of x is multiplied by the weights of its own expert.

    pair      a token and one of its experts: token * top_k + number; rows of the results are pairs
    members   int32 [experts, tokens], the pairs of each expert; counts int32 [experts]
    tile      up to TILE_ROWS members of one expert, times BLOCK_N outputs: one program

The number of tiles depends on the data, so programs are launched for the most there can be, and each
finds its tile from the counts: the host knows nothing, and a graph holds for any routing. With few
tokens a tile is one pair, and no list of members is needed.

Few rows per expert are bound by the memory bandwidth of the weights: there the weights are the first
operand of `tl.dot`, as in `small_m_gemm.py`; with many rows they are the second. Each output is one
chain over K in order in all forms, so all give the same bits; certification checks that. The
canonical form is the one for many rows.

Vendor libraries have grouped GEMMs whose tiles, and with them the bits, depend on the counts.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.elementwise import activated_times, swiglu_times
from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch
from holdfast.numerics.layer import LayerShape
from holdfast.numerics.ops import Linear


@dataclass(frozen=True)
class Tile:
    """The form of a grouped GEMM. swapped: the weights are the first operand of `tl.dot`."""

    rows: int
    outputs: int
    block_k: int
    stages: int
    warps: int
    swapped: bool


@dataclass(frozen=True)
class Assignment:
    """Which pairs each expert gets. members None: each pair is a tile of its own. tiles: those of
    `list_tiles`, for a form with many rows."""

    expert_ids: Tensor  # int32 [tokens, top_k]
    members: Tensor | None  # int32 [experts, tokens]
    counts: Tensor | None  # int32 [experts]
    tiles: Tensor | None = None

    @property
    def num_pairs(self) -> int:
        return self.expert_ids.numel()


_MANY_ROWS = Tile(128, 128, 64, 3, 8, swapped=False)
# By measurement: the most rows of a mean expert, and the form that is fastest up to there.
_FEW_ROWS = (
    (10, Tile(32, 64, 64, 5, 4, swapped=True)),
    (24, Tile(32, 128, 64, 4, 4, swapped=True)),
    (64, Tile(64, 128, 64, 4, 4, swapped=True)),
)
_FP32 = Tile(64, 64, 32, 2, 4, swapped=False)  # without tensor cores, and in little shared memory
_LISTED = 32  # tiles that one program of `list_tiles` finds
MAX_SINGLE_PAIRS = 32  # up to so many pairs, a tile is one pair


def forms(dtype: torch.dtype) -> tuple[Tile, ...]:
    """Return all forms, the canonical one last."""
    return (_FP32,) if dtype is torch.float32 else (*(tile for _, tile in _FEW_ROWS), _MANY_ROWS)


def choose_tile(num_pairs: int, num_experts: int, dtype: torch.dtype, *, canonical: bool) -> Tile:
    """By the mean number of rows of an expert."""
    if canonical or dtype is torch.float32:
        return forms(dtype)[-1]
    return next((tile for rows, tile in _FEW_ROWS if num_pairs <= rows * num_experts), _MANY_ROWS)


def multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    assignment: Assignment,
    tile: Tile,
    *,
    rows_per_input: int = 1,
    gated: LayerShape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [rows, K], weight [experts, N, K], bias fp32 [experts, N] -> [pairs, N], rounded once.

    A pair reads the row pair // rows_per_input. gated: N is gate and up, gate first, and the result is
    [pairs, N / 2], with the activation of this shape.
    """
    num_experts, outputs, width = weight.shape
    outputs = outputs if gated is None else outputs // 2
    num_pairs = assignment.num_pairs
    out = x.new_empty((num_pairs, outputs), dtype=dtype or x.dtype)
    if not num_pairs:
        return out
    members, counts = assignment.members, assignment.counts
    is_single = members is None or counts is None
    tiles = assignment.tiles
    assert is_single or (tiles is None) == tile.swapped
    num_tiles = num_pairs if is_single else max_tiles(num_pairs, num_experts, tile.rows)
    num_blocks = triton.cdiv(outputs, tile.outputs)
    block_k = min(tile.block_k, max(16, int(triton.next_power_of_2(width))))
    _grouped_gemm[(num_tiles * num_blocks,)](
        *(out, x, weight, weight if bias is None else bias, assignment.expert_ids),
        *(one if one is not None else assignment.expert_ids for one in (members, counts, tiles)),
        *(outputs, width, num_blocks, num_experts, 1 if members is None else members.shape[1], rows_per_input),
        *((0.0, 0.0) if gated is None else (gated.swiglu_alpha, gated.swiglu_limit)),
        TILE_ROWS=16 if is_single and tile.swapped else tile.rows, BLOCK_N=tile.outputs, BLOCK_K=block_k,
        STAGES=tile.stages, EXPERTS=int(triton.next_power_of_2(num_experts)), SINGLE=is_single, LISTED=tiles is not None,
        SWAPPED=tile.swapped, ACTIVATION="" if gated is None else gated.activation, HAS_BIAS=bias is not None,
        EVEN_N=outputs % tile.outputs == 0, EVEN_K=width % block_k == 0, num_warps=tile.warps, **pdl_launch,
    )  # fmt: skip
    return out


def max_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    """The most tiles there can be."""
    return min(num_pairs, num_experts + num_pairs // tile_rows)


def list_tiles(counts: Tensor, num_pairs: int, tile_rows: int) -> Tensor:
    """counts int32 [experts] -> int32 [tiles, 2]: the expert (-1: no such tile) and the first member of
    each. For large tiles: where each program looks for its tile itself, its GEMM starts later."""
    num_experts = len(counts)
    num_tiles = max_tiles(num_pairs, num_experts, tile_rows)
    tiles = torch.empty((num_tiles, 2), dtype=torch.int32, device=counts.device)
    _list_tiles[(triton.cdiv(num_tiles, _LISTED),)](
        *(tiles, counts, num_tiles, num_experts),
        TILE_ROWS=tile_rows, EXPERTS=int(triton.next_power_of_2(num_experts)), LISTED=_LISTED, num_warps=4, **pdl_launch,
    )  # fmt: skip
    return tiles


@triton.jit(do_not_specialize=["num_tiles"])
def _list_tiles(
    tiles, counts, num_tiles, num_experts,
    TILE_ROWS: tl.constexpr, EXPERTS: tl.constexpr, LISTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    index, tile = tl.arange(0, EXPERTS), tl.program_id(0) * LISTED + tl.arange(0, LISTED)
    count = tl.load(counts + index, mask=index < num_experts, other=0)
    per_expert = (count + TILE_ROWS - 1) // TILE_ROWS
    ends = tl.cumsum(per_expert, 0)
    expert = tl.sum((ends[None, :] <= tile[:, None]).to(tl.int32), 1)
    begin = tl.sum(tl.where(index[None, :] == expert[:, None], (ends - per_expert)[None, :], 0), 1)
    tl.store(tiles + 2 * tile, tl.where(expert < num_experts, expert, -1), mask=tile < num_tiles)
    tl.store(tiles + 2 * tile + 1, (tile - begin) * TILE_ROWS, mask=tile < num_tiles)


def multiply_one(x: Tensor, w: Linear, *, canonical: bool, dtype: torch.dtype) -> Tensor:
    """x [rows, K] -> [rows, N]: all rows have this expert. For certification, in the form that
    `w.expert_form` says."""
    ids = torch.zeros((len(x), 1), dtype=torch.int32, device=x.device)
    members = torch.from_numpy(np.arange(len(x), dtype=np.int32)).to(x.device)[None]
    counts = torch.full((1,), len(x), dtype=torch.int32, device=x.device)
    tile = forms(x.dtype)[-1 if canonical or w.expert_form is None else w.expert_form]
    bias = None if w.bias is None else w.bias[None]
    tiles = None if tile.swapped else list_tiles(counts, len(x), tile.rows)
    assignment = Assignment(ids, members, counts, tiles)
    return multiply(x, w.data[None], bias, assignment, tile, dtype=dtype)


@triton.jit
def _find_tile(
    tile, expert_ids, members, counts, tiles, num_experts, capacity,
    TILE_ROWS: tl.constexpr, EXPERTS: tl.constexpr, SINGLE: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """The expert of a tile (-1: there is no such tile), the pairs of its rows, and which rows exist."""
    row = tl.arange(0, TILE_ROWS)
    if SINGLE:
        expert = tl.load(expert_ids + tile)
        pairs = tile + tl.zeros_like(row)
        exists = row == 0
    elif LISTED:
        expert, first = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
        found = tl.maximum(expert, 0).to(tl.int64)
        exists = first + row < tl.load(counts + found)
        pairs = tl.load(members + found * capacity + first + row, mask=exists & (expert >= 0), other=0)
    else:
        index = tl.arange(0, EXPERTS)
        count = tl.load(counts + index, mask=index < num_experts, other=0)
        num_tiles = (count + TILE_ROWS - 1) // TILE_ROWS
        ends = tl.cumsum(num_tiles, 0)
        expert = tl.sum((ends <= tile).to(tl.int32), 0)
        mine = index == expert
        first = (tile - tl.sum(tl.where(mine, ends - num_tiles, 0), 0)) * TILE_ROWS
        exists = first + row < tl.sum(tl.where(mine, count, 0), 0)
        expert = tl.where(expert < num_experts, expert, -1)
        at = members + tl.maximum(expert, 0).to(tl.int64) * capacity + first + row
        pairs = tl.load(at, mask=exists & (expert >= 0), other=0)
    return expert, pairs, exists


@triton.jit(do_not_specialize=["capacity"])
def _grouped_gemm(
    out, x, weight, bias, expert_ids, members, counts, tiles,
    outputs, width, num_blocks, num_experts, capacity, rows_per_input, alpha, limit,
    TILE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    EXPERTS: tl.constexpr, SINGLE: tl.constexpr, LISTED: tl.constexpr, SWAPPED: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    tile, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    expert, pairs, exists = _find_tile(
        tile, expert_ids, members, counts, tiles, num_experts, capacity, TILE_ROWS, EXPERTS, SINGLE, LISTED
    )
    if expert >= 0:
        n, k = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        n_in = n if EVEN_N else tl.where(n < outputs, n, 0)
        num_columns = outputs if ACTIVATION == "" else 2 * outputs
        weights = weight + expert.to(tl.int64) * num_columns * width
        inputs = x + (pairs // rows_per_input).to(tl.int64) * width
        if SWAPPED:
            first = weights + n_in[:, None] * width + k[None, :]  # [N, K]
            second = inputs[None, :] + k[:, None]  # [K, rows]
            total = tl.zeros((BLOCK_N, TILE_ROWS), dtype=tl.float32)
        else:
            first = inputs[:, None] + k[None, :]  # [rows, K]
            second = weights + n_in[None, :] * width + k[:, None]  # [K, N]
            total = tl.zeros((TILE_ROWS, BLOCK_N), dtype=tl.float32)
        up = total
        for start in tl.range(0, width, BLOCK_K, num_stages=STAGES):
            in_k = k < width - start
            if SWAPPED:
                x_block = tl.load(second + start, mask=exists[None, :] & (EVEN_K | in_k[:, None]), other=0.0)
                total = tl.dot(
                    _load_weights(first + start, in_k[None, :], EVEN_K),
                    x_block,
                    total,
                    input_precision="ieee",
                )
                if ACTIVATION != "":
                    w_block = _load_weights(first + outputs * width + start, in_k[None, :], EVEN_K)
                    up = tl.dot(w_block, x_block, up, input_precision="ieee")
            else:
                x_block = tl.load(first + start, mask=exists[:, None] & (EVEN_K | in_k[None, :]), other=0.0)
                total = tl.dot(
                    x_block,
                    _load_weights(second + start, in_k[:, None], EVEN_K),
                    total,
                    input_precision="ieee",
                )
                if ACTIVATION != "":
                    w_block = _load_weights(second + outputs * width + start, in_k[:, None], EVEN_K)
                    up = tl.dot(x_block, w_block, up, input_precision="ieee")
        column = tl.expand_dims(n, 1 if SWAPPED else 0)
        row, in_rows = tl.expand_dims(pairs, 0 if SWAPPED else 1), tl.expand_dims(exists, 0 if SWAPPED else 1)
        if HAS_BIAS:
            biases = bias + expert.to(tl.int64) * num_columns + tl.expand_dims(n_in, 1 if SWAPPED else 0)
            total += tl.load(biases)
            if ACTIVATION != "":
                up += tl.load(biases + outputs)
        dtype = out.dtype.element_ty
        if ACTIVATION != "":
            result = _activated(total.to(dtype), up.to(dtype), alpha, limit, ACTIVATION)
        else:
            result = total.to(dtype)
        tl.store(out + row.to(tl.int64) * outputs + column, result, mask=in_rows & (column < outputs))


@triton.jit
def _activated(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    if ACTIVATION == "clamped_swiglu":
        result = swiglu_times(gate, up, alpha, limit)
    else:
        result = activated_times(gate, up, ACTIVATION == "gelu_tanh")
    return result


@triton.jit
def _load_weights(at, in_k, EVEN_K: tl.constexpr):
    return tl.load(at) if EVEN_K else tl.load(at, mask=in_k, other=0.0)
