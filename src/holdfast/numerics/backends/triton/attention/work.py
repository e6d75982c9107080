"""How the programs of a decode pass share the contexts of its short tiles.

A context of n splits can be read by up to n programs. If every tile had one program, a pass with one
long context among short ones would wait for a single program; if every tile had many, a pass of many
requests would launch thousands that have nothing to do. The work list gives each tile a number of
programs in proportion to its splits: if possible no more in all than run at the same time, which
are _TARGET_PROGRAMS:

    splits of the tiles        400    3    3    3
    programs of the tiles       25    1    1    1
    entries of the list   (tile 0, program 0 of 25) ... (tile 0, program 24 of 25), (tile 1, program 0 of 1) ...

A kernel makes the list once a pass from the positions, because a CUDA graph has a fixed number of
programs and does not know the contexts. Results of a tile with several programs go to memory, one
slot for each token and split, and are merged from there.
"""

import triton
import triton.language as tl
from torch import Tensor

from holdfast.numerics.attention_tiles import TILE_COLUMNS
from holdfast.numerics.forward_batch import AttentionWork

_TARGET_PROGRAMS = 264  # programs of all KV heads that fill the device
_MAX_SLOTS = 8192  # tokens times splits; a tile that finds no slots has one program
_COLUMNS = tl.constexpr(TILE_COLUMNS)
_LIST_LENS = (16, 128, 1024)  # tiles of the compiled variants; a pass with more has one program for each tile


def list_work(
    tiles: Tensor, positions: Tensor, *, kv_heads: int, split_len: int, max_len: int
) -> AttentionWork | None:
    """Return the work list of short tiles int32 [n, 6], with contexts of up to max_len positions. None: one
    program for each tile."""
    num_tiles, max_splits = len(tiles), -(-max_len // split_len)
    max_shared = min(_TARGET_PROGRAMS // kv_heads, num_tiles)
    list_len = next((length for length in _LIST_LENS if length >= num_tiles), None)
    if max_splits == 1 or not max_shared or list_len is None:
        return None
    num_slots = min(_MAX_SLOTS, len(positions) * max_splits)
    num_entries = num_tiles + _TARGET_PROGRAMS // kv_heads
    programs = tiles.new_empty((num_entries, 4))
    shared = tiles.new_empty((max_shared, 3))
    _list_work[(1,)](
        *(programs, shared, tiles, positions, num_tiles, num_entries, max_shared, num_slots),
        KV_HEADS=kv_heads, SPLIT_LEN=split_len, TARGET=_TARGET_PROGRAMS,
        TILES=list_len, ENTRIES=triton.next_power_of_2(list_len + _TARGET_PROGRAMS // kv_heads), num_warps=4,
    )  # fmt: skip
    return AttentionWork(programs, shared, num_slots)


@triton.jit
def _splits_per_program(splits, KV_HEADS: tl.constexpr, TARGET: tl.constexpr):
    """The average of TARGET programs, or a little more if with it at most TARGET programs read all
    splits: then none waits for another one to end."""
    average = tl.maximum(tl.cdiv(tl.sum(splits, 0) * KV_HEADS, TARGET), 1)
    least, limit = average, average + average // 4
    while (least < limit) & (tl.sum(tl.cdiv(splits, least), 0) * KV_HEADS > TARGET):
        least += 1
    return tl.where(tl.sum(tl.cdiv(splits, least), 0) * KV_HEADS > TARGET, average, least)


@triton.jit(do_not_specialize=["num_tiles", "num_entries", "max_shared", "num_slots"])
def _list_work(
    programs, shared, tiles, positions, num_tiles, num_entries, max_shared, num_slots,
    KV_HEADS: tl.constexpr, SPLIT_LEN: tl.constexpr, TARGET: tl.constexpr, TILES: tl.constexpr,
    ENTRIES: tl.constexpr,
):  # fmt: skip
    tile = tl.arange(0, TILES)
    tiles += tile * _COLUMNS
    num_tokens = tl.load(tiles + 1, mask=tile < num_tiles, other=0)
    first_row = tl.load(tiles, mask=tile < num_tiles, other=0)
    position = tl.load(positions + first_row, mask=num_tokens > 0, other=0).to(tl.int32)
    context = tl.where(num_tokens > 0, (position + num_tokens - 1) // SPLIT_LEN + 1, 0)  # in splits
    common = tl.load(tiles + 4, mask=num_tokens > 0, other=0)
    own = tl.load(tiles + 5, mask=num_tokens > 0, other=0)
    context = tl.where(own > 0, common + own, context)  # the longest of the tile
    splits = tl.where(own > 0, common + own * num_tokens, context)  # that are read for it
    per_program = _splits_per_program(splits, KV_HEADS, TARGET)
    count = tl.cdiv(splits, per_program)
    slots = tl.where(count > 1, context * num_tokens, 0)
    last_slot = tl.cumsum(slots, 0)
    count = tl.where(last_slot <= num_slots, count, tl.minimum(count, 1))
    first_slot = last_slot - slots
    last_entry = tl.cumsum(count, 0)
    for program in range(tl.max(count, 0)):
        entry, mask = programs + (last_entry - count + program) * 4, program < count
        tl.store(entry, tile, mask=mask)
        tl.store(entry + 1, tl.zeros_like(tile) + program, mask=mask)
        tl.store(entry + 2, count, mask=mask)
        tl.store(entry + 3, first_slot, mask=mask)
    rest = tl.arange(0, ENTRIES)
    unused = tl.zeros_like(rest) - 1
    tl.store(programs + rest * 4, unused, mask=(rest >= tl.sum(count, 0)) & (rest < num_entries))
    is_shared = (count > 1).to(tl.int32)
    entry = shared + (tl.cumsum(is_shared, 0) - 1) * 3
    tl.store(entry, tile, mask=count > 1)
    tl.store(entry + 1, first_slot, mask=count > 1)
    tl.store(entry + 2, context, mask=count > 1)
    tl.store(shared + rest * 3, unused, mask=(rest >= tl.sum(is_shared, 0)) & (rest < max_shared))
