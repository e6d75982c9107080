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

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.elementwise import activated_times
from holdfast.numerics.backends.triton.launch import pdl_begin, pdl_launch
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
    """Which pairs each expert gets. members None: each pair is a tile of its own."""

    expert_ids: Tensor  # int32 [tokens, top_k]
    members: Tensor | None  # int32 [experts, tokens]
    counts: Tensor | None  # int32 [experts]

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
TILES = (*(tile for _, tile in _FEW_ROWS), _MANY_ROWS)
MAX_SINGLE_PAIRS = 32  # up to so many pairs, a tile is one pair


def choose_tile(num_pairs: int, num_experts: int, *, canonical: bool) -> Tile:
    """By the mean number of rows of an expert."""
    if canonical:
        return _MANY_ROWS
    return next((tile for rows, tile in _FEW_ROWS if num_pairs <= rows * num_experts), _MANY_ROWS)


def multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    assignment: Assignment,
    tile: Tile,
    *,
    rows_per_input: int = 1,
    gelu: bool | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [rows, K], weight [experts, N, K], bias fp32 [experts, N] -> [pairs, N], rounded once.

    A pair reads the row pair // rows_per_input. gelu: N is gate and up, gate first, and the result is
    [pairs, N / 2], activated by GELU or, if False, by SiLU.
    """
    num_experts, outputs, width = weight.shape
    is_gated = gelu is not None
    outputs = outputs // 2 if is_gated else outputs
    num_pairs = assignment.num_pairs
    out = x.new_empty((num_pairs, outputs), dtype=dtype or x.dtype)
    if not num_pairs:
        return out
    members, counts = assignment.members, assignment.counts
    is_single = members is None or counts is None
    num_tiles = num_pairs if is_single else min(num_pairs, num_experts + num_pairs // tile.rows)
    num_blocks = triton.cdiv(outputs, tile.outputs)
    block_k = min(tile.block_k, max(16, int(triton.next_power_of_2(width))))
    _grouped_gemm[(num_tiles * num_blocks,)](
        *(out, x, weight, weight if bias is None else bias, assignment.expert_ids),
        *(assignment.expert_ids if members is None else members, assignment.expert_ids if counts is None else counts),
        *(outputs, width, num_blocks, num_experts, 1 if members is None else members.shape[1], rows_per_input),
        TILE_ROWS=16 if is_single and tile.swapped else tile.rows, BLOCK_N=tile.outputs, BLOCK_K=block_k,
        STAGES=tile.stages, EXPERTS=int(triton.next_power_of_2(num_experts)), SINGLE=is_single,
        SWAPPED=tile.swapped, GATED=is_gated, GELU=bool(gelu), HAS_BIAS=bias is not None,
        EVEN_N=outputs % tile.outputs == 0, EVEN_K=width % block_k == 0, num_warps=tile.warps, **pdl_launch,
    )  # fmt: skip
    return out


def multiply_one(x: Tensor, w: Linear, *, canonical: bool, dtype: torch.dtype) -> Tensor:
    """x [rows, K] -> [rows, N]: all rows have this expert. For certification, in the form that
    `w.expert_form` says."""
    ids = torch.zeros((len(x), 1), dtype=torch.int32, device=x.device)
    members = torch.arange(len(x), dtype=torch.int32, device=x.device)[None]
    counts = torch.full((1,), len(x), dtype=torch.int32, device=x.device)
    form = len(TILES) - 1 if canonical or w.expert_form is None else w.expert_form
    bias = None if w.bias is None else w.bias[None]
    return multiply(x, w.data[None], bias, Assignment(ids, members, counts), TILES[form], dtype=dtype)


@triton.jit
def _find_tile(tile, expert_ids, members, counts, num_experts, capacity,
               TILE_ROWS: tl.constexpr, EXPERTS: tl.constexpr, SINGLE: tl.constexpr):  # fmt: skip
    """The expert of a tile (-1: there is no such tile), the pairs of its rows, and which rows exist."""
    row = tl.arange(0, TILE_ROWS)
    if SINGLE:
        expert = tl.load(expert_ids + tile)
        pairs = tile + tl.zeros_like(row)
        exists = row == 0
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
    out, x, weight, bias, expert_ids, members, counts,
    outputs, width, num_blocks, num_experts, capacity, rows_per_input,
    TILE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    EXPERTS: tl.constexpr, SINGLE: tl.constexpr, SWAPPED: tl.constexpr, GATED: tl.constexpr,
    GELU: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_begin(PDL)
    tile, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    expert, pairs, exists = _find_tile(
        tile, expert_ids, members, counts, num_experts, capacity, TILE_ROWS, EXPERTS, SINGLE
    )
    if expert >= 0:
        n, k = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        n_in = n if EVEN_N else tl.where(n < outputs, n, 0)
        num_columns = 2 * outputs if GATED else outputs
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
                if GATED:
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
                if GATED:
                    w_block = _load_weights(second + outputs * width + start, in_k[:, None], EVEN_K)
                    up = tl.dot(x_block, w_block, up, input_precision="ieee")
        column = tl.expand_dims(n, 1 if SWAPPED else 0)
        row, in_rows = tl.expand_dims(pairs, 0 if SWAPPED else 1), tl.expand_dims(exists, 0 if SWAPPED else 1)
        if HAS_BIAS:
            biases = bias + expert.to(tl.int64) * num_columns + tl.expand_dims(n_in, 1 if SWAPPED else 0)
            total += tl.load(biases)
            if GATED:
                up += tl.load(biases + outputs)
        dtype = out.dtype.element_ty
        if GATED:
            result = activated_times(total.to(dtype), up.to(dtype), GELU)
        else:
            result = total.to(dtype)
        tl.store(out + row.to(tl.int64) * outputs + column, result, mask=in_rows & (column < outputs))


@triton.jit
def _load_weights(at, in_k, EVEN_K: tl.constexpr):
    return tl.load(at) if EVEN_K else tl.load(at, mask=in_k, other=0.0)
