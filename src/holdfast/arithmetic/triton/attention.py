"""Paged attention in tiles: the same bits for a row that decodes alone, stands in a window or in a chunk of a prompt.

A tile holds consecutive rows of one sequence, the query heads of one KV head packed beside each other:

    tile row   0        1        2        3        4        5     ...
    token      0        0        0        1        1        1            G = 3 query heads a KV head
    head       h G      h G + 1  h G + 2  h G      h G + 1  h G + 2

What fixes the bits of a row: the KV is taken in blocks of KV_BLOCK positions from position 0 with a running softmax in fp32;
every SPLIT positions, again from position 0, the softmax starts anew, and the splits' results are folded in order. A block or
split that a row does not see leaves it as it was. What does not: how tall the tile is (64 or 128 rows, one kind of tensor core
instruction), which other rows stand in it, and how many programs share the splits of a tile. One program folds them in
registers; several leave them in memory, and a second kernel folds them by the same operations.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.arithmetic.rows import KVLayer, Rows

KV_BLOCK = 64
SPLIT = 256
PAGE_SIZE = 64
_SHORT, _TALL = 64, 128  # rows of a tile
_BUSY = 512  # programs that fill the device; splits are shared out until there are so many
_LOG2E = 1.4426950408889634
_NEVER = tl.constexpr(-1.0e30)


def tile_rows(longest_span: int, group: int) -> int:
    """Tokens a tile holds in a pass whose longest span has so many, with so many query heads a KV head."""
    short = max(1, _SHORT // group)
    return short if longest_span <= short else max(1, _TALL // group)


def attend(q: Tensor, layer: KVLayer, rows: Rows, *, scale: float, window: int | None) -> Tensor:
    """q [rows, H, D] -> [rows, H * D]. Rows outside any tile are zero, and undefined in a captured graph."""
    num_rows, heads, width = q.shape
    kv_heads = layer.keys.shape[1]
    group = heads // kv_heads
    assert layer.keys.shape[3] == PAGE_SIZE and layer.keys.stride(2) == layer.values.stride(3) == 1
    assert q.is_contiguous() and group <= _TALL
    tiles, tall = _tiles_of(rows, group)
    out = _new_output(num_rows, heads * width, q)
    if not len(tiles):
        return out
    programs = _programs(len(tiles), kv_heads, tall)
    max_splits = -(-(rows.max_pages or rows.page_table.shape[1]) * PAGE_SIZE // SPLIT) if programs > 1 else 1
    sums = q.new_empty((num_rows, heads, max_splits, width) if programs > 1 else (1,), dtype=torch.float32)
    marks = q.new_empty((num_rows, heads, max_splits, 2) if programs > 1 else (1,), dtype=torch.float32)
    keys, values = layer.keys, layer.values
    block_d = max(16, triton.next_power_of_2(width))
    _attend_tiles[(len(tiles), kv_heads, programs)](
        *(q, keys, values, out, sums, marks, rows.positions, tiles, rows.page_table),
        *(scale * _LOG2E, window or 0, max_splits),
        *(keys.stride(0), keys.stride(1), keys.stride(3), values.stride(0), values.stride(1), values.stride(2)),
        KV_HEADS=kv_heads, GROUP=group, WIDTH=width, BLOCK_D=block_d, BLOCK_M=_TALL if tall else _SHORT,
        BLOCK_N=KV_BLOCK, SPLIT_LEN=SPLIT, PAGE=PAGE_SIZE, PROGRAMS=programs, WINDOWED=window is not None,
        PRECISION="ieee", num_warps=8 if tall else 4, num_stages=_stages(q.dtype, block_d),
    )  # fmt: skip
    if programs > 1:
        _fold_splits[(num_rows, heads)](
            *(out, sums, marks, rows.positions, rows.slots, window or 0, max_splits),
            HEADS=heads, WIDTH=width, BLOCK_D=block_d, SPLIT_LEN=SPLIT, WINDOWED=window is not None, num_warps=1,
        )  # fmt: skip
    return out


def _tiles_of(rows: Rows, group: int) -> tuple[Tensor, bool]:
    """The pass's tiles, and whether they are tall; made here where the pass brings none."""
    if rows.tiles is not None:
        return rows.tiles, rows.tile_rows * group > _SHORT
    starts: list[int] = rows.span_starts.tolist()
    longest = max((stop - start for start, stop in zip(starts, starts[1:], strict=False)), default=0)
    height, pages = tile_rows(longest, group), rows.page_table.shape[1]
    found = [
        (row, min(height, stop - row), span * pages)
        for span, (start, stop) in enumerate(zip(starts, starts[1:], strict=False))
        for row in range(start, stop, height)
    ]
    tiles = torch.tensor(found, dtype=torch.int32).view(-1, 3).to(rows.page_table.device)
    return tiles, height * group > _SHORT


def _new_output(num_rows: int, width: int, q: Tensor) -> Tensor:
    captured = q.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return q.new_empty((num_rows, width)) if captured else q.new_zeros((num_rows, width))


def _programs(num_tiles: int, kv_heads: int, tall: bool) -> int:
    """How many programs share a tile's splits. Tall tiles are many, or long enough by themselves."""
    return 1 if tall else max(1, min(64, _BUSY // (num_tiles * kv_heads)))


def _stages(dtype: torch.dtype, block_d: int) -> int:
    return 3 if dtype.itemsize * block_d <= 256 else 1


@triton.jit
def _fold(best, mass, mixed, split_best, split_mass, split_mixed):
    """One more split behind those folded so far; one that was not seen changes nothing."""
    now = tl.maximum(best, split_best)
    keep, add = tl.exp2(best - now), tl.exp2(split_best - now)
    seen = split_best > _NEVER
    mass = tl.where(seen, tl.fma(mass, keep, split_mass * add), mass)
    mixed = tl.where(seen[:, None], tl.fma(mixed, keep[:, None], split_mixed * add[:, None]), mixed)
    return now, mass, mixed


@triton.jit
def _attend_tiles(
    q, keys, values, out, sums, marks, positions, tiles, pages,
    scale, window, max_splits,
    key_page, key_head, key_at, value_page, value_head, value_at,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT_LEN: tl.constexpr, PAGE: tl.constexpr, PROGRAMS: tl.constexpr,
    WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
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
    query = tl.load(q + row[:, None] * WIDTH + lane[None, :], mask=real[:, None] & has_lane[None, :], other=0.0)
    lowest = 0
    if WINDOWED:
        lowest = tl.maximum(start_at - window + 1, 0)
    best = tl.full([BLOCK_M], _NEVER, tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    keys += head * key_head
    values += head * value_head
    for split in range(lowest // SPLIT_LEN + part, last_at // SPLIT_LEN + 1, PROGRAMS):
        split_best = tl.full([BLOCK_M], _NEVER, tl.float32)
        split_mass = tl.zeros([BLOCK_M], tl.float32)
        split_mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        begin = tl.maximum(split * SPLIT_LEN, lowest // BLOCK_N * BLOCK_N)
        end = tl.minimum(split * SPLIT_LEN + SPLIT_LEN, last_at + 1)
        for start in range(begin, end, BLOCK_N):
            page = tl.load(pages + first_page + start // PAGE).to(tl.int64)
            offset = start % PAGE + column
            block = tl.load(
                keys + page * key_page + offset[None, :] * key_at + lane[:, None],
                mask=has_lane[:, None], other=0.0,
            )  # fmt: skip
            scores = tl.dot(query, block, input_precision=PRECISION) * scale  # [M, N]
            seen = (start + column)[None, :] <= at[:, None]
            if WINDOWED:
                seen = seen & ((start + column)[None, :] > at[:, None] - window)
            scores = tl.where(seen, scores, _NEVER)
            now = tl.maximum(split_best, tl.max(scores, 1))
            weights = tl.where(seen, tl.exp2(scores - now[:, None]), 0.0)
            keep = tl.exp2(split_best - now)
            split_mass = tl.fma(split_mass, keep, tl.sum(weights, 1))
            split_mixed = split_mixed * keep[:, None]
            # A slot behind the last row may hold anything, and nothing times NaN is NaN.
            written = (start + column <= last_at)[:, None] & has_lane[None, :]
            block = tl.load(
                values + page * value_page + offset[:, None] * value_at + lane[None, :], mask=written, other=0.0
            )
            split_mixed = tl.dot(weights.to(block.dtype), block, split_mixed, input_precision=PRECISION)
            split_best = now
        if PROGRAMS == 1:
            best, mass, mixed = _fold(best, mass, mixed, split_best, split_mass, split_mixed)
        else:
            entry = row * max_splits + split
            tl.store(sums + entry[:, None] * WIDTH + lane[None, :], split_mixed,
                     mask=real[:, None] & has_lane[None, :])  # fmt: skip
            tl.store(marks + entry * 2, split_best, mask=real)
            tl.store(marks + entry * 2 + 1, split_mass, mask=real)
    if PROGRAMS == 1:
        found = mixed / tl.where(real, mass, 1.0)[:, None] + 0.0  # a zero has one sign
        tl.store(out + row[:, None] * WIDTH + lane[None, :], found.to(out.dtype.element_ty),
                 mask=real[:, None] & has_lane[None, :])  # fmt: skip


@triton.jit
def _fold_splits(
    out, sums, marks, positions, slots, window, max_splits,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT_LEN: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(slots + row) < 0:
        return
    at = tl.load(positions + row).to(tl.int32)
    lane = tl.arange(0, BLOCK_D)
    entry = (row * HEADS + head) * max_splits
    best = tl.full([1], _NEVER, tl.float32)
    mass = tl.zeros([1], tl.float32)
    mixed = tl.zeros([1, BLOCK_D], tl.float32)
    lowest = 0
    if WINDOWED:
        lowest = tl.maximum(at - window + 1, 0)
    one = tl.zeros([1], tl.int32)
    for split in range(lowest // SPLIT_LEN, at // SPLIT_LEN + 1):
        split_best = tl.load(marks + (entry + split) * 2 + one)
        split_mass = tl.load(marks + (entry + split) * 2 + 1 + one)
        split_mixed = tl.load(sums + (entry + split) * WIDTH + lane[None, :], mask=lane[None, :] < WIDTH, other=0.0)
        best, mass, mixed = _fold(best, mass, mixed, split_best, split_mass, split_mixed)
    found = mixed / mass[:, None] + 0.0
    tl.store(out + (row * HEADS + head) * WIDTH + lane[None, :], found.to(out.dtype.element_ty),
             mask=lane[None, :] < WIDTH)  # fmt: skip
