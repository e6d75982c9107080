"""Paged attention in tiles: the same bits for a row that decodes alone, stands in a window or in a chunk of a prompt.

A tile holds consecutive rows of one sequence, the query heads of one KV head packed beside each other:

    tile row   0        1        2        3        4        5     ...
    token      0        0        0        1        1        1            G = 3 query heads a KV head
    head       h G      h G + 1  h G + 2  h G      h G + 1  h G + 2

What fixes the bits of a row: the KV is taken in blocks of KV_BLOCK positions from position 0 with a running softmax in fp32;
every SPLIT positions, again from position 0, the softmax starts anew, and the splits' results are folded in order. All sums
over positions are made by the tensor cores, the softmax's own included, so they have one order. A block or split that a
row does not see leaves it as it was. What does not fix them: how tall the tile is, which other rows stand in it, whether
it is the first or the second factor of its products (short tiles are the second: then few rows cost little), and how many
programs share its splits. One program folds them in registers; several leave them in memory, and a second kernel folds them
by the same operations.
"""

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.backends.triton.launch import await_last, in_turn, let_next, take_turn
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer

KV_BLOCK = 64
SPLIT = 256
PAGE_SIZE = 64
_SHORT, _TALL = 16, 128  # rows of a tile
_LONG = 64  # spans of more tokens than that are worth tall tiles
_BUSY = 264  # programs that fill the device; splits are shared out until there are so many
_LOG2E = 1.4426950408889634
_NEVER = tl.constexpr(-1.0e30)


def tile_tokens(span_len: int, group: int) -> int:
    """Tokens a tile of a span of so many holds, with so many query heads a KV head."""
    return (_SHORT if span_len <= _LONG and group <= _SHORT else _TALL) // group


def attend(q: Tensor, layer: KVLayer, rows: ForwardBatch, *, scale: float, window: int | None) -> Tensor:
    """q [rows, H, D] -> [rows, H * D]. ForwardBatch outside any tile are zero, and undefined in a captured graph."""
    num_rows, heads, width = q.shape
    kv_heads = layer.keys.shape[1]
    group = heads // kv_heads
    assert layer.keys.shape[3] == PAGE_SIZE and layer.keys.stride(2) == layer.values.stride(3) == 1
    assert q.is_contiguous() and group <= _TALL
    tiles, num_short = _tiles_of(rows, group)
    short, tall = tiles[:num_short], tiles[num_short:]
    out = _new_output(num_rows, heads * width, q)
    keys, values = layer.keys, layer.values
    block_d = max(16, triton.next_power_of_2(width))
    strides = (*(keys.stride(axis) for axis in (0, 1, 3)), *(values.stride(axis) for axis in (0, 1, 2)))
    shape = {"KV_HEADS": kv_heads, "GROUP": group, "WIDTH": width, "BLOCK_D": block_d, "BLOCK_N": KV_BLOCK}
    shape |= {"SPLIT_LEN": SPLIT, "PAGE": PAGE_SIZE, "WINDOWED": window is not None}
    is_small = q.element_size() * block_d <= 256  # three blocks of keys and values fit a program's memory
    what = (rows.page_table, scale * _LOG2E, window or 0, *strides)
    if len(tall):
        _attend_tall[(len(tall), kv_heads)](
            *(out, q, keys, values, rows.positions, tall), *what, **shape, BLOCK_M=_TALL,
            num_warps=8, num_stages=3 if is_small else 1, **in_turn,
        )  # fmt: skip
    if not len(short):
        return out
    programs = 1 if len(tall) else max(1, min(64, _BUSY // (len(short) * kv_heads)))
    max_splits = -(-(rows.max_pages or rows.page_table.shape[1]) * PAGE_SIZE // SPLIT)
    room = (num_rows, heads, max_splits) if programs > 1 else (1,)
    sums, marks = (q.new_empty((*room, size), dtype=torch.float32) for size in (width, 2))
    _attend_short[(kv_heads, len(short), programs)](  # neighbours read the same pages
        *(out, sums, marks, max_splits, programs, q, keys, values, rows.positions, short), *what, **shape,
        BLOCK_M=_SHORT if group <= _SHORT else _TALL, SHARED=programs > 1,
        num_warps=4, num_stages=3 if is_small else 1, **in_turn,
    )  # fmt: skip
    if programs > 1:
        _fold_splits[(num_rows, heads)](
            *(out, sums, marks, rows.positions, rows.slots, window or 0, max_splits),
            HEADS=heads, WIDTH=width, BLOCK_D=block_d, SPLIT_LEN=SPLIT, WINDOWED=window is not None, num_warps=1,
            **in_turn,
        )  # fmt: skip
    return out


def _tiles_of(rows: ForwardBatch, group: int) -> tuple[Tensor, int]:
    """The pass's tiles, short ones first, and how many are short; made here where the pass brings none."""
    if rows.tiles is not None:
        return rows.tiles, rows.num_short_tiles
    starts: list[int] = rows.span_starts.tolist()
    pages = rows.page_table.shape[1]
    short: list[tuple[int, int, int]] = []
    tall: list[tuple[int, int, int]] = []
    for span, (start, stop) in enumerate(pairwise(starts)):
        tokens = tile_tokens(stop - start, group)
        found = short if tokens == tile_tokens(1, group) else tall
        found += [(row, min(tokens, stop - row), span * pages) for row in range(start, stop, tokens)]
    tiles = torch.tensor(short + tall, dtype=torch.int32).view(-1, 3)
    return tiles.to(rows.page_table.device), len(short)


def _new_output(num_rows: int, width: int, q: Tensor) -> Tensor:
    captured = q.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return q.new_empty((num_rows, width)) if captured else q.new_zeros((num_rows, width))


@triton.jit
def _fold(best, mass, mixed, split_best, split_mass, split_mixed, AXIS: tl.constexpr):
    """One more split behind those folded so far; one that was not seen changes nothing. mixed has its rows across AXIS."""
    now = tl.maximum(best, split_best)
    keep, add = tl.exp2(best - now), tl.exp2(split_best - now)
    seen = split_best > _NEVER
    mass = tl.where(seen, tl.fma(mass, keep, split_mass * add), mass)
    wide_keep, wide_add = tl.expand_dims(keep, AXIS), tl.expand_dims(add, AXIS)
    mixed = tl.where(tl.expand_dims(seen, AXIS), tl.fma(mixed, wide_keep, split_mixed * wide_add), mixed)
    return now, mass, mixed


@triton.jit(do_not_specialize=["window"])
def _attend_tall(
    out, q, keys, values, positions, tiles, pages, scale, window,
    key_page, key_head, key_at, value_page, value_head, value_at,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT_LEN: tl.constexpr, PAGE: tl.constexpr, WINDOWED: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    take_turn(TURNS)
    tile, head = tl.program_id(0), tl.program_id(1)
    num_rows = tl.load(tiles + tile * 3 + 1)
    if num_rows == 0:
        return
    first_row, first_page = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 2)
    start_at = tl.load(positions + first_row).to(tl.int32)
    last_at = start_at + num_rows - 1
    place = tl.arange(0, BLOCK_M)
    real = place // GROUP < num_rows
    at = tl.where(real, start_at + place // GROUP, -1)  # [M], the position of each tile row
    row = (first_row + place // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + place % GROUP
    lane, column = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    has_lane = lane < WIDTH
    inside = real[:, None] & has_lane[None, :]
    query = tl.load(q + row[:, None] * WIDTH + lane[None, :], mask=inside, other=0.0)  # [M, D]
    lowest = 0
    if WINDOWED:
        lowest = tl.maximum(start_at - window + 1, 0)
    best = tl.full([BLOCK_M], _NEVER, tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    ones = tl.full([BLOCK_N, 16], 1.0, query.dtype)
    keys += head * key_head
    values += head * value_head
    for split in range(lowest // SPLIT_LEN, last_at // SPLIT_LEN + 1):
        split_best = tl.full([BLOCK_M], _NEVER, tl.float32)
        split_mass = tl.zeros([BLOCK_M, 16], tl.float32)
        split_mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        begin = tl.maximum(split * SPLIT_LEN, lowest // BLOCK_N * BLOCK_N)
        end = tl.minimum(split * SPLIT_LEN + SPLIT_LEN, last_at + 1)
        for start in range(begin, end, BLOCK_N):
            page = tl.load(pages + first_page + start // PAGE).to(tl.int64)
            offset = start % PAGE + column
            block = tl.load(
                keys + page * key_page + offset[None, :] * key_at + lane[:, None],
                mask=has_lane[:, None],
                other=0.0,
            )  # [D, N]
            scores = tl.dot(query, block, input_precision="ieee") * scale  # [M, N]
            seen = (start + column)[None, :] <= at[:, None]
            if WINDOWED:
                seen = seen & ((start + column)[None, :] > at[:, None] - window)
            scores = tl.where(seen, scores, _NEVER)
            now = tl.maximum(split_best, tl.max(scores, 1))
            weights = tl.where(seen, tl.exp2(scores - now[:, None]), 0.0).to(query.dtype)
            keep = tl.exp2(split_best - now)[:, None]
            # A slot behind the last row may hold anything, and nothing times NaN is NaN.
            written = (start + column <= last_at)[:, None] & has_lane[None, :]
            block = tl.load(
                values + page * value_page + offset[:, None] * value_at + lane[None, :],
                mask=written,
                other=0.0,
            )  # [N, D]
            split_mass = tl.dot(weights, ones, split_mass * keep, input_precision="ieee")
            split_mixed = tl.dot(weights, block, split_mixed * keep, input_precision="ieee")
            split_best = now
        split_total = tl.max(split_mass, 1)  # all columns are the same
        best, mass, mixed = _fold(best, mass, mixed, split_best, split_total, split_mixed, 1)
    found = mixed / tl.where(real, mass, 1.0)[:, None] + 0.0  # a zero has one sign
    tl.store(out + row[:, None] * WIDTH + lane[None, :], found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _block_start(turn, first_split, programs, SPLIT_LEN: tl.constexpr, BLOCK_N: tl.constexpr):
    """The position at which a program's turn begins: blocks in order, splits first_split, first_split + programs, ..."""
    per_split: tl.constexpr = SPLIT_LEN // BLOCK_N
    return (first_split + turn // per_split * programs) * SPLIT_LEN + turn % per_split * BLOCK_N


@triton.jit(do_not_specialize=["max_splits", "programs", "window"])
def _attend_short(
    out, sums, marks, max_splits, programs, q, keys, values, positions, tiles, pages, scale, window,
    key_page, key_head, key_at, value_page, value_head, value_at,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT_LEN: tl.constexpr, PAGE: tl.constexpr, WINDOWED: tl.constexpr, SHARED: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """As `_attend_tall`, with every matrix transposed, and the splits of a tile shared among programs.

    Few rows wait for memory: one loop goes over the blocks of all splits, so that the next ones are on their way while a
    split is folded, and the page of a block is looked up a turn before the block is asked for. Where to begin is looked up
    before the program's turn comes: tiles, positions and pages are written before the first layer.
    """
    let_next(TURNS)
    head, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_rows = tl.load(tiles + tile * 3 + 1)
    first_row, first_page = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 2)
    if num_rows == 0:
        await_last(TURNS)  # when this kernel is done, so is all before it
        return
    start_at = tl.load(positions + first_row).to(tl.int32)
    last_at = start_at + num_rows - 1
    lowest = 0
    if WINDOWED:
        lowest = tl.maximum(start_at - window + 1, 0)
    first_split, last_split = lowest // SPLIT_LEN + part, last_at // SPLIT_LEN
    num_splits = (last_split - first_split + programs) // programs
    begin, end = 0, num_splits * (SPLIT_LEN // BLOCK_N)
    if part == 0:
        begin = lowest % SPLIT_LEN // BLOCK_N
    if first_split + (num_splits - 1) * programs == last_split:
        end -= (SPLIT_LEN - 1 - last_at % SPLIT_LEN) // BLOCK_N
    pages += first_page
    start = _block_start(begin, first_split, programs, SPLIT_LEN, BLOCK_N)
    if SHARED:
        start = tl.minimum(start, last_at)  # there may be nothing left for this program
    page = tl.load(pages + start // PAGE).to(tl.int64)
    await_last(TURNS)
    place = tl.arange(0, BLOCK_M)
    real = place // GROUP < num_rows
    at = tl.where(real, start_at + place // GROUP, -1)
    row = (first_row + place // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + place % GROUP
    lane, column = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    has_lane = lane < WIDTH
    inside = has_lane[:, None] & real[None, :]
    query = tl.load(q + row[None, :] * WIDTH + lane[:, None], mask=inside, other=0.0)  # [D, M]
    best = tl.full([BLOCK_M], _NEVER, tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    ones = tl.full([64, BLOCK_N], 1.0, query.dtype)
    keys += head * key_head
    values += head * value_head
    split_best = tl.full([BLOCK_M], _NEVER, tl.float32)
    split_mass = tl.zeros([64, BLOCK_M], tl.float32)
    split_mixed = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    for turn in range(begin, end):
        start = _block_start(turn, first_split, programs, SPLIT_LEN, BLOCK_N)
        next_start = _block_start(turn + 1, first_split, programs, SPLIT_LEN, BLOCK_N)
        next_page = tl.load(pages + tl.minimum(next_start, last_at) // PAGE).to(tl.int64)
        offset = start % PAGE + column
        written = (start + column <= last_at)[:, None] & has_lane[None, :]  # nothing behind is read
        block = tl.load(
            keys + page * key_page + offset[:, None] * key_at + lane[None, :],
            mask=written,
            other=0.0,
        )  # [N, D]
        scores = tl.dot(block, query, input_precision="ieee") * scale  # [N, M]
        seen = (start + column)[:, None] <= at[None, :]
        if WINDOWED:
            seen = seen & ((start + column)[:, None] > at[None, :] - window)
        scores = tl.where(seen, scores, _NEVER)
        now = tl.maximum(split_best, tl.max(scores, 0))
        weights = tl.where(seen, tl.exp2(scores - now[None, :]), 0.0).to(query.dtype)
        keep = tl.exp2(split_best - now)[None, :]
        block = tl.load(
            values + page * value_page + offset[:, None] * value_at + lane[None, :],
            mask=written,
            other=0.0,
        )  # [N, D]
        split_mass = tl.dot(ones, weights, split_mass * keep, input_precision="ieee")
        split_mixed = tl.dot(tl.trans(block), weights, split_mixed * keep, input_precision="ieee")
        split_best = now
        page = next_page
        if (next_start % SPLIT_LEN == 0) | (turn == end - 1):  # the split ends here
            split_total = tl.max(split_mass, 0)
            if SHARED:
                entry = row * max_splits + start // SPLIT_LEN
                tl.store(sums + entry[None, :] * WIDTH + lane[:, None], split_mixed, mask=inside)
                tl.store(marks + entry * 2, split_best, mask=real)
                tl.store(marks + entry * 2 + 1, split_total, mask=real)
            else:
                best, mass, mixed = _fold(best, mass, mixed, split_best, split_total, split_mixed, 0)
            split_best = tl.full([BLOCK_M], _NEVER, tl.float32)
            split_mass = tl.zeros([64, BLOCK_M], tl.float32)
            split_mixed = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    if not SHARED:
        found = mixed / tl.where(real, mass, 1.0)[None, :] + 0.0
        tl.store(out + row[None, :] * WIDTH + lane[:, None], found.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["max_splits", "window"])
def _fold_splits(
    out, sums, marks, positions, slots, window, max_splits,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT_LEN: tl.constexpr, WINDOWED: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """What several programs left of a row and head, folded as one program would have."""
    take_turn(TURNS)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(slots + row) < 0:
        return
    at = tl.load(positions + row).to(tl.int32)
    lane, one = tl.arange(0, BLOCK_D), tl.arange(0, 1)
    has_lane = (lane < WIDTH)[None, :]
    entry = (row * HEADS + head) * max_splits
    best = tl.full([1], _NEVER, tl.float32)
    mass = tl.zeros([1], tl.float32)
    mixed = tl.zeros([1, BLOCK_D], tl.float32)
    lowest = 0
    if WINDOWED:
        lowest = tl.maximum(at - window + 1, 0)
    for split in range(lowest // SPLIT_LEN, at // SPLIT_LEN + 1):
        split_best = tl.load(marks + (entry + split) * 2 + one)
        split_mass = tl.load(marks + (entry + split) * 2 + 1 + one)
        split_mixed = tl.load(sums + (entry + split) * WIDTH + lane[None, :], mask=has_lane, other=0.0)
        best, mass, mixed = _fold(best, mass, mixed, split_best, split_mass, split_mixed, 1)
    found = mixed / mass[:, None] + 0.0
    tl.store(
        out + (row * HEADS + head) * WIDTH + lane[None, :], found.to(out.dtype.element_ty), mask=has_lane
    )
