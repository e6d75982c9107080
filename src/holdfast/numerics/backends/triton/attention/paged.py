"""Paged attention in tiles: a token has the same bits in decode, in a verification window and in a
chunk of a prompt.

A tile holds consecutive tokens of one request, with the query heads of one KV head side by side:

    tile row   0        1        2        3        4        5     ...
    token      0        0        0        1        1        1            G = 3 query heads per KV head
    head       h G      h G + 1  h G + 2  h G      h G + 1  h G + 2

What decides the bits of a token: the KV is read in blocks of KV_BLOCK positions from position 0,
with an online softmax in fp32. After every SPLIT positions, counted from position 0, the softmax
starts anew; the results of the splits are merged in order. All sums over positions are computed by
tensor cores (`tl.dot`), including the sum of the softmax, so they have one order. A block or split
that a token does not see leaves it unchanged. A short tile may hold tokens of several requests that
begin with the same pages (`numerics/attention_tiles.py`): then it reads these pages first, and those
of each request after them.

What does not decide them: the height of the tile, the other tokens in it, whether it is the first
or the second operand of `tl.dot` (a short tile is the second, because few rows are cheap there),
and the number of programs that share its splits (`attention_work.py`). One program merges them in
registers. Several programs write them to memory, and a second kernel merges them by the same
operations.
"""

import logging
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.attention_tiles import TILE_COLUMNS, list_decode_tiles, list_tiles
from holdfast.numerics.backends.triton.attention.scores import SCORE_GRID, as_reference, divide, scale_scores
from holdfast.numerics.backends.triton.attention.work import list_work
from holdfast.numerics.backends.triton.launch import (
    INTERPRETED,
    no_pdl,
    pdl_begin,
    pdl_launch,
    pdl_launch_next,
    pdl_wait,
)
from holdfast.numerics.forward_batch import AttentionWork, ForwardBatch, KVLayer

KV_BLOCK = 64
SPLIT = 256
PAGE_SIZE = 64
SPLIT_PAGES = SPLIT // PAGE_SIZE
COLUMNS = tl.constexpr(TILE_COLUMNS)
_SHORT_TILE, _TALL_TILE = 16, 128  # rows of a tile: tokens times query heads per KV head
_SPLITS_LOADED = 8  # at once, by the kernel that merges splits
_MARKS = 32  # of the kernel for Hopper GPUs, which one program reads
_MAX_SHORT_SPAN = 64  # longer spans use tall tiles
_LOG2E = 1.4426950408889634
LOG2E = tl.constexpr(_LOG2E)
_MASKED = tl.constexpr(-1.0e30)
_log = logging.getLogger(__name__)


def _load_hopper() -> ModuleType | None:
    """Return the kernel for Hopper GPUs. It needs Gluon, which Triton's interpreter and old versions do not
    have."""
    if INTERPRETED:
        return None
    try:
        return import_module("holdfast.numerics.backends.triton.attention.hopper")
    except (ImportError, AttributeError):
        return None


_hopper = _load_hopper()


def tile_tokens(span_len: int, group: int) -> int:
    """Tokens per tile for a span of `span_len` tokens, with `group` query heads per KV head."""
    return (_SHORT_TILE if span_len <= _MAX_SHORT_SPAN and group <= _SHORT_TILE else _TALL_TILE) // group


def attention(
    q: Tensor,
    layer: KVLayer,
    batch: ForwardBatch,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [tokens, H, D] -> [tokens, H * D]. sinks fp32 [H]: scores without a value, which come before
    the first split.

    Tokens outside any tile are zero; in a captured graph they are undefined.
    """
    num_tokens, heads, width = q.shape
    kv_heads = layer.keys.shape[1]
    group = heads // kv_heads
    assert layer.keys.shape[3] == PAGE_SIZE and layer.keys.stride(2) == layer.values.stride(3) == 1
    assert group <= _TALL_TILE
    q = q.contiguous()
    tiles, num_short = _tiles(batch, group, shares=window is None)
    short, tall = tiles[:num_short], tiles[num_short:]
    out = _new_output(num_tokens, heads * width, q)
    keys, values = layer.keys, layer.values
    block_d = max(16, triton.next_power_of_2(width))
    strides = (*(keys.stride(axis) for axis in (0, 1, 3)), *(values.stride(axis) for axis in (0, 1, 2)))
    is_plain = soft_cap is None and sinks is None
    shape = {"KV_HEADS": kv_heads, "GROUP": group, "WIDTH": width, "BLOCK_D": block_d, "BLOCK_N": KV_BLOCK}
    shape |= {"SPLIT_LEN": SPLIT, "PAGE": PAGE_SIZE, "WINDOWED": window is not None}
    shape |= {"CAPPED": soft_cap is not None, "HAS_SINKS": sinks is not None}
    shape |= {"GRID": SCORE_GRID.value if is_plain and q.element_size() == 2 else 0.0}
    fits_three_blocks = q.element_size() * block_d <= 256  # three blocks of K and V fit in shared memory
    log2_scale = scale * _LOG2E if soft_cap is None else scale / soft_cap
    common = (batch.page_table, log2_scale, (soft_cap or 0.0) * _LOG2E, window or 0)
    settings = (*common, q if sinks is None else sinks, *strides)
    if len(tall):
        marks = None
        if is_plain:
            marks = _attend_on_hopper(out, q, layer, batch, tall, scale=scale, window=window)
        grid = (len(tall), kv_heads) if marks is None else (-(-marks.numel() // _MARKS), 1)
        _attention_tall[grid](
            *(out, q if marks is None else marks, q, keys, values, batch.positions, tall, len(tall)), *settings,
            **shape, BLOCK_M=_TALL_TILE, MARKS=0 if marks is None else _MARKS,
            num_warps=8, num_stages=3 if fits_three_blocks else 1, **pdl_launch,
        )  # fmt: skip
    if not len(short):
        return out
    work = batch.attention_work or _list_work(batch, short, kv_heads)
    block_m = _SHORT_TILE if group <= _SHORT_TILE else _TALL_TILE
    num_slots = 1 if work is None else work.num_slots
    split_accs, split_stats = (
        q.new_empty((num_slots, heads, size), dtype=torch.float32) for size in (width, 2)
    )
    programs = short if work is None else work.programs
    # The kernel reads the list before it waits for the kernel before it.
    launch = pdl_launch if work is batch.attention_work else no_pdl
    _attention_short[(kv_heads, len(programs))](  # neighbouring programs read the same pages
        *(out, split_accs, split_stats, programs, q, keys, values, batch.positions, short), *settings, **shape,
        BLOCK_M=block_m, LISTED=work is not None,
        num_warps=4, num_stages=3 if fits_three_blocks else 1, **launch,
    )  # fmt: skip
    if work is not None:
        _merge_splits[(len(work.shared), heads)](
            *(out, split_accs, split_stats, batch.positions, short, work.shared, window or 0),
            q if sinks is None else sinks,
            HEADS=heads, WIDTH=width, BLOCK_D=block_d, SPLIT_LEN=SPLIT, LOADED=_SPLITS_LOADED,
            WINDOWED=window is not None, HAS_SINKS=sinks is not None, GRID=shape["GRID"], num_warps=1, **pdl_launch,
        )  # fmt: skip
    return out


def prepare(batch: ForwardBatch, heads: int, kv_heads: int) -> ForwardBatch:
    """List the tiles and the work of a pass once for all its layers."""
    tiles, num_short = _tiles(batch, heads // kv_heads)
    work = _list_work(batch, tiles[:num_short], kv_heads)
    return replace(batch, tiles=tiles, num_short_tiles=num_short, attention_work=work)


def _list_work(batch: ForwardBatch, short: Tensor, kv_heads: int) -> AttentionWork | None:
    max_len = (batch.max_pages or batch.page_table.shape[1]) * PAGE_SIZE
    return list_work(short, batch.positions, kv_heads=kv_heads, split_len=SPLIT, max_len=max_len)


def _attend_on_hopper(
    out: Tensor,
    q: Tensor,
    layer: KVLayer,
    batch: ForwardBatch,
    tall: Tensor,
    *,
    scale: float,
    window: int | None,
) -> Tensor | None:
    """Compute the tall tiles with the kernel for Hopper. Return its marks of tiles that `_attention_tall` is to
    compute; None: of all, with the same bits, where the kernel cannot be compiled."""
    global _hopper
    if _hopper is None or not _hopper.supports(q, layer):
        return None
    try:
        marks: Tensor = _hopper.attention_tall(
            *(out, q, layer, batch.positions, tall, batch.page_table),
            log2_scale=scale * _LOG2E, window=window, split_len=SPLIT,
        )  # fmt: skip
    except Exception as error:  # of the compiler; it has many types
        if torch.cuda.is_current_stream_capturing():
            raise
        torch.cuda.synchronize(q.device)  # raises if the device failed, not the compiler
        _hopper = None
        _log.warning("the attention kernel for Hopper GPUs is not used, prefill will be slower: %s", error)
        return None
    return marks


def _tiles(batch: ForwardBatch, group: int, *, shares: bool = False) -> tuple[Tensor, int]:
    """Return the tiles of the batch, short ones first, and the number of short ones.

    Listed here if the batch has none. shares: requests may share them.
    """
    if batch.tiles is not None:
        return batch.tiles, batch.num_short_tiles
    starts = batch.span_starts.cpu().numpy().astype(np.int64)
    count, width = batch.page_table.shape
    if shares and (starts == np.arange(count + 1)).all():
        positions, pages = batch.positions[:count].cpu().numpy(), batch.page_table.cpu().numpy()
        found = list_decode_tiles(
            positions, pages, tile_tokens(1, group), page_size=PAGE_SIZE, split_pages=SPLIT_PAGES
        )
        num_short = len(found)
    else:
        found, num_short = list_tiles(starts, partial(tile_tokens, group=group), width)
    return torch.from_numpy(found).to(batch.page_table.device), num_short


def _new_output(num_tokens: int, width: int, q: Tensor) -> Tensor:
    captured = q.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return q.new_empty((num_tokens, width)) if captured else q.new_zeros((num_tokens, width))


@triton.jit
def _begin_rows(sinks, heads, HAS_SINKS: tl.constexpr):
    """Maximum and sum of rows of these query heads before the first split: those of their sinks."""
    if HAS_SINKS:
        row_max = tl.load(sinks + heads) * LOG2E
        row_sum = tl.full(heads.shape, 1.0, tl.float32)
    else:
        row_max = tl.full(heads.shape, _MASKED, tl.float32)
        row_sum = tl.zeros(heads.shape, tl.float32)
    return row_max, row_sum


@triton.jit
def _merge(row_max, row_sum, acc, split_max, split_sum, split_acc, AXIS: tl.constexpr):
    """Merge one more split into the running result.

    A split that is not visible changes nothing. AXIS: the dims of acc.
    """
    new_max = tl.maximum(row_max, split_max)
    rescale, split_scale = tl.exp2(row_max - new_max), tl.exp2(split_max - new_max)
    visible = split_max > _MASKED
    row_sum = tl.where(visible, tl.fma(row_sum, rescale, split_sum * split_scale), row_sum)
    rescale_2d, split_scale_2d = tl.expand_dims(rescale, AXIS), tl.expand_dims(split_scale, AXIS)
    acc = tl.where(tl.expand_dims(visible, AXIS), tl.fma(acc, rescale_2d, split_acc * split_scale_2d), acc)
    return new_max, row_sum, acc


@triton.jit(do_not_specialize=["window", "num_tiles"])
def _attention_tall(
    out, marks, q, keys, values, positions, tiles, num_tiles, pages, scale, cap, window, sinks,
    key_page, key_head, key_slot, value_page, value_head, value_slot,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT_LEN: tl.constexpr, PAGE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr, GRID: tl.constexpr, MARKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile and KV head a program. With MARKS: those that are marked of MARKS / 2."""
    pdl_begin(PDL)
    if MARKS == 0:
        tiles += tl.program_id(0) * COLUMNS
        if tl.load(tiles + 1) == 0:
            return
        _attend_tall(
            out, q, keys, values, positions, tiles, tl.program_id(1), pages,
            scale, cap, window, sinks, key_page, key_head, key_slot, value_page, value_head, value_slot,
            KV_HEADS, GROUP, WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, SPLIT_LEN, PAGE, WINDOWED, CAPPED, HAS_SINKS, GRID,
        )  # fmt: skip
    else:
        first, end = tl.program_id(0) * MARKS, num_tiles * KV_HEADS * 2
        mark = first + tl.arange(0, MARKS)
        if tl.max(tl.load(marks + mark, mask=mark < end, other=0).to(tl.int32), 0) > 0:
            for at in range(first, min(first + MARKS, end), 2):
                if (tl.load(marks + at) | tl.load(marks + at + 1)) != 0:
                    _attend_tall(
                        out, q, keys, values, positions, tiles + at // 2 // KV_HEADS * COLUMNS, at // 2 % KV_HEADS,
                        pages, scale, cap, window, sinks,
                        key_page, key_head, key_slot, value_page, value_head, value_slot,
                        KV_HEADS, GROUP, WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, SPLIT_LEN, PAGE, WINDOWED, CAPPED,
                        HAS_SINKS, GRID,
                    )  # fmt: skip


@triton.jit
def _attend_tall(
    out, q, keys, values, positions, tiles, head, pages, scale, cap, window, sinks,
    key_page, key_head, key_slot, value_page, value_head, value_slot,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT_LEN: tl.constexpr, PAGE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr, GRID: tl.constexpr,
):  # fmt: skip
    first_row, num_tokens, first_page = tl.load(tiles), tl.load(tiles + 1), tl.load(tiles + 2)
    first_position = tl.load(positions + first_row).to(tl.int32)
    last_position = first_position + num_tokens - 1
    tile_row = tl.arange(0, BLOCK_M)
    valid = tile_row // GROUP < num_tokens
    position = tl.where(valid, first_position + tile_row // GROUP, -1)  # [M], the position of each tile row
    row = (first_row + tile_row // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + tile_row % GROUP
    dim, column = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    dim_mask = dim < WIDTH
    mask_2d = valid[:, None] & dim_mask[None, :]
    query = tl.load(q + row[:, None] * WIDTH + dim[None, :], mask=mask_2d, other=0.0)  # [M, D]
    first_visible = 0
    if WINDOWED:
        first_visible = tl.maximum(first_position - window + 1, 0)
    row_max, row_sum = _begin_rows(sinks, head * GROUP + tile_row % GROUP, HAS_SINKS)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    ones = tl.full([BLOCK_N, 16], 1.0, query.dtype)
    keys += head * key_head
    values += head * value_head
    for split in range(first_visible // SPLIT_LEN, last_position // SPLIT_LEN + 1):
        split_max = tl.full([BLOCK_M], _MASKED, tl.float32)
        split_sum = tl.zeros([BLOCK_M, 16], tl.float32)
        split_acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        begin = tl.maximum(split * SPLIT_LEN, first_visible // BLOCK_N * BLOCK_N)
        end = tl.minimum(split * SPLIT_LEN + SPLIT_LEN, last_position + 1)
        for start in range(begin, end, BLOCK_N):
            page = tl.load(pages + first_page + start // PAGE).to(tl.int64)
            offset = start % PAGE + column
            block = tl.load(
                keys + page * key_page + offset[None, :] * key_slot + dim[:, None],
                mask=dim_mask[:, None],
                other=0.0,
            )  # [D, N]
            scores = scale_scores(
                tl.dot(query, block, input_precision="ieee"), scale, cap, CAPPED, GRID
            )  # [M, N]
            visible = (start + column)[None, :] <= position[:, None]
            if WINDOWED:
                visible = visible & ((start + column)[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, _MASKED)
            new_max = tl.maximum(split_max, as_reference(tl.max(scores, 1), GRID))
            weights = tl.where(visible, tl.exp2(scores - new_max[:, None]), 0.0).to(query.dtype)
            rescale = tl.exp2(split_max - new_max)[:, None]
            # A slot after the last token may hold NaN, and 0 * NaN is NaN.
            written = (start + column <= last_position)[:, None] & dim_mask[None, :]
            block = tl.load(
                values + page * value_page + offset[:, None] * value_slot + dim[None, :],
                mask=written,
                other=0.0,
            )  # [N, D]
            split_sum = tl.dot(weights, ones, split_sum * rescale, input_precision="ieee")
            split_acc = tl.dot(weights, block, split_acc * rescale, input_precision="ieee")
            split_max = new_max
        split_row_sum = tl.max(split_sum, 1)  # all columns are equal
        row_max, row_sum, acc = _merge(row_max, row_sum, acc, split_max, split_row_sum, split_acc, 1)
    result = divide(acc, tl.where(valid, row_sum, 1.0)[:, None], GRID)
    tl.store(out + row[:, None] * WIDTH + dim[None, :], result.to(out.dtype.element_ty), mask=mask_2d)


@triton.jit
def _locate(step, first_split, programs, common, own, SPLIT_LEN: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the first position of a program's block number `step`, and the token of the tile that reads it; -1: all.

    Its splits are first_split, first_split + programs, ... in this order: those that all tokens read, then `own` of
    the first token, then `own` of the second one.
    """
    per_split: tl.constexpr = SPLIT_LEN // BLOCK_N
    split = first_split + step // per_split * programs
    beyond = tl.maximum(split - common, 0)
    token = beyond // own
    is_own = split >= common
    split = tl.where(is_own, common + beyond - token * own, split)
    return split * SPLIT_LEN + step % per_split * BLOCK_N, tl.where(is_own, token, -1)


@triton.jit
def _load_page(start, token, last_position, pages, positions, num_tokens, page_stride, PAGE: tl.constexpr):
    """Return the page that holds position `start` of a token's request, and the last position that is written in
    it."""
    owner = tl.minimum(tl.maximum(token, 0), num_tokens - 1)
    written = tl.where(token < 0, last_position, tl.load(positions + owner).to(tl.int32))
    page = tl.load(pages + owner * page_stride + tl.minimum(start, written) // PAGE)
    return page.to(tl.int64), written


@triton.jit(do_not_specialize=["window"])
def _attention_short(
    out, split_accs, split_stats, work, q, keys, values, positions, tiles, pages, scale, cap, window, sinks,
    key_page, key_head, key_slot, value_page, value_head, value_slot,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT_LEN: tl.constexpr, PAGE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    LISTED: tl.constexpr, HAS_SINKS: tl.constexpr, GRID: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `_attention_tall` with every matrix transposed, and the splits of a tile spread over
    programs.

    Few rows are bound by memory latency. One loop goes over the blocks of all splits, so that the
    next blocks are being loaded while a split is merged, and the page of a block is read one step
    before the block. Tiles, work list, positions and page table are written before the first layer,
    so they are read before `pdl_wait`.
    """
    pdl_launch_next(PDL)
    head, tile, program, programs, slot = tl.program_id(0), tl.program_id(1), 0, 1, 0
    if LISTED:
        work += tile * 4
        tile, program, programs = tl.load(work), tl.load(work + 1), tl.load(work + 2)
        slot = tl.load(work + 3)
        if tile < 0:
            pdl_wait(PDL)  # a kernel may end only after all kernels before it
            return
    tiles += tile * COLUMNS
    num_tokens = tl.load(tiles + 1)
    first_row, first_page = tl.load(tiles), tl.load(tiles + 2)
    if num_tokens == 0:
        pdl_wait(PDL)
        return
    positions += first_row
    first_position = tl.load(positions).to(tl.int32)
    last_position = first_position + num_tokens - 1
    first_visible = 0
    page_stride, common, own = 0, 1 << 30, 1
    last_split, num_unread = (
        last_position // SPLIT_LEN,
        (SPLIT_LEN - 1 - last_position % SPLIT_LEN) // BLOCK_N,
    )
    if WINDOWED:
        first_visible = tl.maximum(first_position - window + 1, 0)
    else:
        num_own = tl.load(tiles + 5)
        if num_own > 0:
            page_stride, common, own = tl.load(tiles + 3), tl.load(tiles + 4), num_own
            last_position, last_split, num_unread = first_position, common + num_tokens * own - 1, 0
    first_split = first_visible // SPLIT_LEN + program
    num_splits = (last_split - first_split + programs) // programs
    begin, end = 0, num_splits * (SPLIT_LEN // BLOCK_N)
    if program == 0:
        begin = first_visible % SPLIT_LEN // BLOCK_N
    if first_split + (num_splits - 1) * programs == last_split:
        end -= num_unread
    pages += first_page
    start, token = _locate(begin, first_split, programs, common, own, SPLIT_LEN, BLOCK_N)
    page, written = _load_page(start, token, last_position, pages, positions, num_tokens, page_stride, PAGE)
    pdl_wait(PDL)
    tile_row = tl.arange(0, BLOCK_M)
    valid = tile_row // GROUP < num_tokens
    position = tl.load(positions + tile_row // GROUP, mask=valid, other=-1).to(tl.int32)
    row = (first_row + tile_row // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + tile_row % GROUP
    dim, column = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    dim_mask = dim < WIDTH
    mask_2d = dim_mask[:, None] & valid[None, :]
    query = tl.load(q + row[None, :] * WIDTH + dim[:, None], mask=mask_2d, other=0.0)  # [D, M]
    row_max, row_sum = _begin_rows(sinks, head * GROUP + tile_row % GROUP, HAS_SINKS)
    acc = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    ones = tl.full([64, BLOCK_N], 1.0, query.dtype)
    keys += head * key_head
    values += head * value_head
    split_max = tl.full([BLOCK_M], _MASKED, tl.float32)
    split_sum = tl.zeros([64, BLOCK_M], tl.float32)
    split_acc = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    for step in range(begin, end):
        next_start, next_token = _locate(step + 1, first_split, programs, common, own, SPLIT_LEN, BLOCK_N)
        next_page, next_written = _load_page(
            next_start, next_token, last_position, pages, positions, num_tokens, page_stride, PAGE
        )
        offset = start % PAGE + column
        # Slots after the last token are not read.
        is_written = (start + column <= written)[:, None] & dim_mask[None, :]
        block = tl.load(
            keys + page * key_page + offset[:, None] * key_slot + dim[None, :], mask=is_written, other=0.0
        )  # [N, D]
        scores = scale_scores(
            tl.dot(block, query, input_precision="ieee"), scale, cap, CAPPED, GRID
        )  # [N, M]
        reads = (token < 0) | (tile_row // GROUP == token)
        visible = (start + column)[:, None] <= tl.where(reads, position, -1)[None, :]
        if WINDOWED:
            visible = visible & ((start + column)[:, None] > position[None, :] - window)
        scores = tl.where(visible, scores, _MASKED)
        new_max = tl.maximum(split_max, as_reference(tl.max(scores, 0), GRID))
        weights = tl.where(visible, tl.exp2(scores - new_max[None, :]), 0.0).to(query.dtype)
        rescale = tl.exp2(split_max - new_max)[None, :]
        block = tl.load(
            values + page * value_page + offset[:, None] * value_slot + dim[None, :],
            mask=is_written,
            other=0.0,
        )  # [N, D]
        split_sum = tl.dot(ones, weights, split_sum * rescale, input_precision="ieee")
        split_acc = tl.dot(tl.trans(block), weights, split_acc * rescale, input_precision="ieee")
        split_max = new_max
        if (next_start % SPLIT_LEN == 0) | (step == end - 1):  # the last block of the split
            split_row_sum = tl.max(split_sum, 0)
            if programs > 1:
                entry = (slot + start // SPLIT_LEN * num_tokens + tile_row // GROUP).to(tl.int64)
                entry = entry * (KV_HEADS * GROUP) + head * GROUP + tile_row % GROUP
                stored = valid & reads
                tl.store(
                    split_accs + entry[None, :] * WIDTH + dim[:, None],
                    split_acc,
                    mask=mask_2d & reads[None, :],
                )
                tl.store(split_stats + entry * 2, split_max, mask=stored)
                tl.store(split_stats + entry * 2 + 1, split_row_sum, mask=stored)
            else:
                row_max, row_sum, acc = _merge(row_max, row_sum, acc, split_max, split_row_sum, split_acc, 0)
            split_max = tl.full([BLOCK_M], _MASKED, tl.float32)
            split_sum = tl.zeros([64, BLOCK_M], tl.float32)
            split_acc = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
        start, token, page, written = next_start, next_token, next_page, next_written
    if programs == 1:
        result = divide(acc, tl.where(valid, row_sum, 1.0)[None, :], GRID)
        tl.store(out + row[None, :] * WIDTH + dim[:, None], result.to(out.dtype.element_ty), mask=mask_2d)


@triton.jit
def _load_split(split_accs, split_stats, entry, mask, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """Maximum [1], sum [1] and result [1, D] of one split; those of no split without the mask."""
    one, dim = tl.arange(0, 1), tl.arange(0, BLOCK_D)[None, :]
    split_max = tl.load(split_stats + entry * 2 + one, mask=mask, other=_MASKED)
    split_sum = tl.load(split_stats + entry * 2 + 1 + one, mask=mask, other=0.0)
    split_acc = tl.load(split_accs + entry * WIDTH + dim, mask=mask & (dim < WIDTH), other=0.0)
    return split_max, split_sum, split_acc


@triton.jit(do_not_specialize=["window"])
def _merge_splits(
    out, split_accs, split_stats, positions, tiles, shared, window, sinks,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT_LEN: tl.constexpr, LOADED: tl.constexpr,
    WINDOWED: tl.constexpr, HAS_SINKS: tl.constexpr, GRID: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one tile and head that several programs wrote, by the operations of one
    program.

    One warp for each token, so that no value crosses between threads. LOADED splits are loaded
    together, because a load takes longer than a merge. One that is missing changes nothing.
    """
    pdl_launch_next(PDL)
    head = tl.program_id(1)
    tile = tl.load(shared + tl.program_id(0) * 3)
    if tile < 0:
        pdl_wait(PDL)
        return
    slot = tl.load(shared + tl.program_id(0) * 3 + 1).to(tl.int64)
    tiles += tile * COLUMNS
    first_row, num_tokens = tl.load(tiles), tl.load(tiles + 1)
    pdl_wait(PDL)
    step = num_tokens.to(tl.int64) * HEADS  # from an entry to that of the next split
    for token in range(num_tokens):
        position = tl.load(positions + first_row + token).to(tl.int32)
        first, last = 0, position // SPLIT_LEN
        if WINDOWED:
            first = tl.maximum(position - window + 1, 0) // SPLIT_LEN
        entry = (slot + token) * HEADS + head + first * step
        row_max, row_sum = _begin_rows(sinks, head + tl.arange(0, 1), HAS_SINKS)
        acc = tl.zeros([1, BLOCK_D], tl.float32)
        for group in range(first, last + 1, LOADED):
            splits = ()
            for place in tl.static_range(LOADED):
                splits += (  # type: ignore[assignment]
                    _load_split(
                        split_accs, split_stats, entry + place * step, group + place <= last, WIDTH, BLOCK_D
                    ),
                )
            for place in tl.static_range(LOADED):
                split_max, split_sum, split_acc = splits[place]  # type: ignore[var-annotated]
                row_max, row_sum, acc = _merge(row_max, row_sum, acc, split_max, split_sum, split_acc, 1)
            entry += LOADED * step
        result = divide(acc, row_sum[:, None], GRID)
        dim = tl.arange(0, BLOCK_D)[None, :]
        row = (first_row + token).to(tl.int64) * HEADS + head
        tl.store(out + row * WIDTH + dim, result.to(out.dtype.element_ty), mask=dim < WIDTH)
