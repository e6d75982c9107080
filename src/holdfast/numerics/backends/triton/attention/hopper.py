"""Attention of tall tiles on Hopper GPUs, with the bits of `_attention_tall` in `paged.py`.

Triton compiles a tall tile to one stream of instructions: while its softmax is computed, the tensor
cores wait. This kernel is written in Gluon, Triton's lower level, and gives warps different roles:

    producer      1 warp     copies pages of K and V to shared memory ahead of use, by TMA
    consumer 0    4 warps    rows 0 to 63 of the tile
    consumer 1    4 warps    rows 64 to 127

While one consumer computes its softmax, the other one multiplies. A consumer also issues Q K of the next
block before P V of this one.

Scores are subtracted from one reference for a row, the maximum of its first block, where `_attention_tall` takes
the maximum so far: no sum is rescaled. The references are integers and the scores multiples of 2^-14, so a weight
differs by a power of two, and no rounding does. To `ex2.approx` that is exact below 0, so `_MARGIN` is added to the
reference. A row whose scores exceed it, or stay far below, is marked, and `redo_marked` computes its tile.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from holdfast.numerics.attention_tiles import TILE_COLUMNS
from holdfast.numerics.backends.triton.attention.scores import SCORE_GRID, TINY_RESULT
from holdfast.numerics.backends.triton.launch import compute_capability
from holdfast.numerics.forward_batch import KVLayer

TILE_ROWS = 128
_ROWS = gl.constexpr(64)  # of one consumer
_STAGES = 4  # pages of K and of V in shared memory
_WIDTHS = (64, 128)
_MASKED = gl.constexpr(-1.0e30)
_MARGIN = gl.constexpr(40.0)
_LEAST_SUM = gl.constexpr(2.0**-80)  # 1 is too much: then a score may exceed its reference
_COLUMNS = gl.constexpr(TILE_COLUMNS)


def supports(q: Tensor, layer: KVLayer) -> bool:
    """Whether this kernel can compute q [tokens, H, D]. It needs a Hopper GPU, as other generations have other
    matrix instructions, and bfloat16, as small weights in float16 are rounded more coarsely."""
    return (
        q.dtype == torch.bfloat16
        and q.shape[2] in _WIDTHS
        and layer.values.is_contiguous()
        and layer.keys.transpose(2, 3).is_contiguous()
        and compute_capability(q.device)[0] == 9
    )


def attention_tall(
    out: Tensor,
    q: Tensor,
    layer: KVLayer,
    positions: Tensor,
    tiles: Tensor,
    page_table: Tensor,
    *,
    log2_scale: float,
    window: int | None,
    split_len: int,
) -> Tensor:
    """Write the tokens of `tiles` int32 [n, 6] to out [tokens, H * D]. Return which of them are to be computed
    again, bool [n, KV heads, 2]: one of the two for each consumer. log2_scale: the scale of the scores for
    powers of two."""
    _, heads, width = q.shape
    num_pages, kv_heads, page_size, _ = layer.values.shape
    block = [page_size, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    pools = (layer.keys.transpose(2, 3), layer.values)
    rows = num_pages * kv_heads * page_size
    marks = torch.empty((len(tiles), kv_heads, 2), dtype=torch.bool, device=q.device)
    keys, values = (TensorDescriptor(pool, [rows, width], [width, 1], block, layout) for pool in pools)
    _attention_hopper[(len(tiles), kv_heads)](
        *(out, marks, q, keys, values, positions, tiles, page_table, log2_scale, window or 0),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, WIDTH=width, BLOCK_N=page_size,
        PER_SPLIT=split_len // page_size, WINDOWED=window is not None, STAGES=_STAGES,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return marks


@gluon.jit(do_not_specialize=["window"], do_not_specialize_on_alignment=["tiles"])
def _attention_hopper(
    out, marks, q, keys, values, positions, tiles, pages, scale, window,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, WIDTH: gl.constexpr, BLOCK_N: gl.constexpr,
    PER_SPLIT: gl.constexpr, WINDOWED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    tile = gl.num_programs(0) - 1 - gl.program_id(0)  # the longest contexts of a chunk first
    head = gl.program_id(1)
    tiles += tile * _COLUMNS
    marks += (tile * KV_HEADS + head) * 2
    first_row, num_tokens = gl.load(tiles), gl.load(tiles + 1)
    pages += gl.load(tiles + 2)
    if num_tokens == 0:
        gl.store(marks, False)
        gl.store(marks + 1, False)
    else:
        first_position = gl.load(positions + first_row).to(gl.int32)
        begin = 0
        if WINDOWED:
            begin = gl.maximum(first_position - window + 1, 0) // BLOCK_N
        end = (first_position + num_tokens - 1) // BLOCK_N + 1
        dtype: gl.constexpr = q.dtype.element_ty
        k_blocks = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, WIDTH], keys.layout)
        v_blocks = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, WIDTH], values.layout)
        queries = gl.allocate_shared_memory(dtype, [2, _ROWS, WIDTH], keys.layout)
        ones_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([8, BLOCK_N], dtype)
        ones_in_registers: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        ones = gl.allocate_shared_memory(
            dtype, [8, BLOCK_N], ones_layout, gl.full([8, BLOCK_N], 1.0, dtype, ones_in_registers)
        )
        barrier: gl.constexpr = mbarrier.MBarrierLayout()
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
        for stage in gl.static_range(STAGES):
            mbarrier.init(k_full.index(stage), count=1)
            mbarrier.init(v_full.index(stage), count=1)
            mbarrier.init(k_empty.index(stage), count=2)  # both consumers
            mbarrier.init(v_empty.index(stage), count=2)
        fence_async_shared()
        where = (first_row, num_tokens, first_position, head, begin, end, scale, window)
        buffers = (k_blocks, v_blocks, k_full, k_empty, v_full, v_empty)
        gl.warp_specialize(
            [
                (_consume, (out, marks, q, queries, ones, where, buffers, 0,
                            KV_HEADS, GROUP, WIDTH, BLOCK_N, PER_SPLIT, WINDOWED, STAGES)),
                (_consume, (out, marks, q, queries, ones, where, buffers, 1,
                            KV_HEADS, GROUP, WIDTH, BLOCK_N, PER_SPLIT, WINDOWED, STAGES)),
                (_produce, (keys, values, pages, head, begin, end, buffers,
                            KV_HEADS, BLOCK_N, BLOCK_N * WIDTH * 2, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


@gluon.jit
def _produce(
    keys, values, pages, head, begin, end, buffers,
    KV_HEADS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_BYTES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    k_blocks, v_blocks, k_full, k_empty, v_full, v_empty = buffers
    for at in range(begin, end):
        stage, phase = _place(at - begin, STAGES)
        row = (gl.load(pages + at) * KV_HEADS + head) * BLOCK_N
        mbarrier.wait(k_empty.index(stage), phase ^ 1)
        mbarrier.expect(k_full.index(stage), BLOCK_BYTES)
        tma.async_copy_global_to_shared(keys, [row, 0], k_full.index(stage), k_blocks.index(stage))
        mbarrier.wait(v_empty.index(stage), phase ^ 1)
        mbarrier.expect(v_full.index(stage), BLOCK_BYTES)
        tma.async_copy_global_to_shared(values, [row, 0], v_full.index(stage), v_blocks.index(stage))


@gluon.jit
def _consume(
    out, marks, q, queries, ones, where, buffers,
    PART: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_N: gl.constexpr, PER_SPLIT: gl.constexpr, WINDOWED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """64 rows of the tile. Blocks are numbered from position 0."""
    first_row, num_tokens, first_position, head, begin, end, scale, window = where
    k_blocks, v_blocks, k_full, k_empty, v_full, v_empty = buffers
    dtype: gl.constexpr = q.dtype.element_ty
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
    load_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // WIDTH, WIDTH // 8], [4, 1], [1, 0])

    tile_row = PART * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, load_layout))
    row = (first_row + tile_row // GROUP).to(gl.int64) * (KV_HEADS * GROUP) + head * GROUP + tile_row % GROUP
    dim = gl.arange(0, WIDTH, gl.SliceLayout(0, load_layout))
    mine = queries.index(PART)
    mine.store(
        gl.load(q + row[:, None] * WIDTH + dim[None, :], (tile_row // GROUP < num_tokens)[:, None], other=0.0)
    )
    fence_async_shared()
    gl.thread_barrier()
    tile_row = PART * _ROWS + gl.arange(0, _ROWS, row_layout)
    last_position = first_position + num_tokens - 1
    position = gl.where(tile_row // GROUP < num_tokens, first_position + tile_row // GROUP, -1)
    seen = (position, first_position, last_position, scale, window)
    row_sum = gl.zeros([_ROWS, 8], gl.float32, sum_layout)
    acc = gl.zeros([_ROWS, WIDTH], gl.float32, acc_layout)
    split_sum = gl.zeros([_ROWS, 8], gl.float32, sum_layout)
    split_acc = gl.zeros([_ROWS, WIDTH], gl.float32, acc_layout)
    no_dots = gl.zeros([_ROWS, BLOCK_N], gl.float32, score_layout)

    mbarrier.wait(k_full.index(0), 0)
    dots = warpgroup_mma(mine, k_blocks.index(0).permute((1, 0)), no_dots, use_acc=False, is_async=True)
    dots = warpgroup_mma_wait(0, deps=[dots])
    mbarrier.arrive(k_empty.index(0))
    scores = _scores(dots, begin, seen, BLOCK_N, WINDOWED)
    highest = gl.max(scores, 1)
    reference = gl.where(highest == _MASKED, SCORE_GRID, gl.ceil(highest)) + _MARGIN
    weights = gl.exp2(scores - reference[:, None]).to(dtype)
    for at in range(begin, end - 1):
        # P V of block `at`, and Q K and the softmax of the next one.
        k_stage, k_phase = _place(at + 1 - begin, STAGES)
        v_stage, v_phase = _place(at - begin, STAGES)
        mbarrier.wait(k_full.index(k_stage), k_phase)
        mbarrier.wait(v_full.index(v_stage), v_phase)
        dots = warpgroup_mma(
            mine, k_blocks.index(k_stage).permute((1, 0)), no_dots, use_acc=False, is_async=True
        )
        split_acc, split_sum, used = _multiply(
            weights, v_blocks.index(v_stage), ones, split_acc, split_sum, (at % PER_SPLIT != 0) & (at > begin)
        )
        dots = warpgroup_mma_wait(2, deps=[dots])
        mbarrier.arrive(k_empty.index(k_stage))
        scores = _scores(dots, at + 1, seen, BLOCK_N, WINDOWED)
        next_weights = gl.exp2(scores - reference[:, None]).to(dtype)
        split_acc, split_sum, next_weights = _wait(split_acc, split_sum, used, next_weights)
        mbarrier.arrive(v_empty.index(v_stage))
        if (at + 1) % PER_SPLIT == 0:
            acc, row_sum = acc + split_acc, row_sum + split_sum
        weights = next_weights

    # The last block of V. A slot after the last token may hold NaN, and 0 * NaN is NaN. The queries
    # are not needed any more; the block without such slots takes their place.
    v_stage, v_phase = _place(end - 1 - begin, STAGES)
    mbarrier.wait(v_full.index(v_stage), v_phase)
    slot = (end - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, load_layout))
    mine.store(gl.where((slot <= last_position)[:, None], v_blocks.index(v_stage).load(load_layout), 0.0))
    fence_async_shared()
    gl.thread_barrier()
    continues = ((end - 1) % PER_SPLIT != 0) & (end - 1 > begin)
    split_acc, split_sum, used = _multiply(weights, mine, ones, split_acc, split_sum, continues)
    split_acc, split_sum, weights = _wait(split_acc, split_sum, used, weights)
    acc, row_sum = acc + split_acc, row_sum + split_sum

    row_sum = gl.convert_layout(gl.max(row_sum, 1), gl.SliceLayout(1, acc_layout))  # all columns are equal
    result = acc / row_sum[:, None] + 0.0  # -0 becomes 0
    result = gl.where(gl.abs(result) < TINY_RESULT, 0.0, result)
    tile_row = PART * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, acc_layout))
    row = (first_row + tile_row // GROUP).to(gl.int64) * (KV_HEADS * GROUP) + head * GROUP + tile_row % GROUP
    dim = gl.arange(0, WIDTH, gl.SliceLayout(0, acc_layout))
    valid = tile_row // GROUP < num_tokens
    gl.store(out + row[:, None] * WIDTH + dim[None, :], result.to(dtype), mask=valid[:, None])
    is_far = valid & ~((row_sum > _LEAST_SUM) & (row_sum < 1.0))
    gl.store(marks + PART, gl.max(is_far.to(gl.int32), 0) > 0)


@gluon.jit
def _place(step, STAGES: gl.constexpr):
    """The stage of a consumer's or producer's step, and the phase of its barriers."""
    return step % STAGES, (step // STAGES) & 1


@gluon.jit
def _scores(dots, block, seen, BLOCK_N: gl.constexpr, WINDOWED: gl.constexpr):
    """Return the scores of a block, SCORE_GRID added. Only blocks at the end of the context, or of the window, are
    masked."""
    position, first_position, last_position, scale, window = seen
    layout: gl.constexpr = dots.type.layout
    start = block * BLOCK_N
    grid = gl.full([_ROWS, BLOCK_N], SCORE_GRID, gl.float32, layout)
    scores = gl.fma(dots, gl.full([_ROWS, BLOCK_N], scale, gl.float32, layout), grid)
    is_masked = start + BLOCK_N - 1 > first_position
    if WINDOWED:
        is_masked = is_masked | (start <= last_position - window)
    if is_masked:
        slot = start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
        visible = slot[None, :] <= position[:, None]
        if WINDOWED:
            visible = visible & (slot[None, :] > position[:, None] - window)
        scores = gl.where(visible, scores, _MASKED)
    return scores


@gluon.jit
def _multiply(weights, block, ones, split_acc, split_sum, continues):
    """Start P V and the sum of P. Not `continues`: what was summed before counts nothing."""
    acc_layout: gl.constexpr = gl.DotOperandLayout(0, split_acc.type.layout, 2)
    sum_layout: gl.constexpr = gl.DotOperandLayout(0, split_sum.type.layout, 2)
    for_acc, for_sum = gl.convert_layout(weights, acc_layout), gl.convert_layout(weights, sum_layout)
    split_acc = warpgroup_mma(for_acc, block, split_acc, use_acc=continues, is_async=True)
    split_sum = warpgroup_mma(for_sum, ones.permute((1, 0)), split_sum, use_acc=continues, is_async=True)
    return split_acc, split_sum, (for_acc, for_sum)


@gluon.jit
def _wait(split_acc, split_sum, used, next_weights):
    """Wait for P V, after `next_weights` are computed."""
    for_acc, for_sum = used
    split_acc, split_sum, for_acc, for_sum, next_weights = warpgroup_mma_wait(
        0, deps=[split_acc, split_sum, for_acc, for_sum, next_weights]
    )
    return split_acc, split_sum, next_weights
