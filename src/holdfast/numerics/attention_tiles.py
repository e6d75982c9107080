"""Attention tiles: the tokens that one program of a kernel computes together.

A tile holds consecutive tokens of a span. Where every span has one token, a tile may hold several spans whose requests
begin with the same pages, as those of an evaluation do: it reads these pages once for all of them.

    request 0   | page 7 | page 4 | page 9 |              tile of requests 0, 1 and 2:
    request 1   | page 7 | page 4 | page 2 | page 5 |         common   7 4
    request 2   | page 7 | page 4 | page 8 |                  own      9 | 2 5 | 8

No bit of a token depends on its tile.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Of a tile: its first token, its number of tokens (0: an unused tile), and the offset of its pages in the flattened
# page table. Zeros follow if its tokens are of one span. If each has a span of its own: the offset from the pages of
# one to those of the next, the number of splits whose pages all of them have in common, and the largest number of
# further splits of one.
TILE_COLUMNS = 6

Ints = NDArray[np.int64]
Tiles = NDArray[np.int32]  # [tiles, TILE_COLUMNS]


def list_tiles(starts: Ints, tile_tokens: Callable[[int], int], num_pages: int) -> tuple[Tiles, int]:
    """Cut every span into tiles. Return them, those of short spans first, and how many are short.

    starts [spans + 1]: the first token of each span. tile_tokens: how many tokens a tile of a span of this length
    holds. num_pages: the width of the page table.
    """
    lengths, short = np.diff(starts), tile_tokens(1)
    heights = np.full(len(lengths), short)
    for span in np.flatnonzero(lengths > short):
        heights[span] = tile_tokens(int(lengths[span]))
    counts = -(-lengths // heights)  # of tiles, by span
    span_of = np.repeat(np.arange(len(lengths)), counts)  # [tiles]
    heights = heights[span_of]
    before = np.cumsum(counts) - counts  # tiles of earlier spans
    offsets = (np.arange(len(span_of)) - before[span_of]) * heights  # of the tile's first token in its span
    tiles = np.zeros((len(span_of), TILE_COLUMNS), np.int32)
    tiles[:, 0] = starts[span_of] + offsets
    tiles[:, 1] = np.minimum(lengths[span_of] - offsets, heights)
    tiles[:, 2] = span_of * num_pages
    is_tall = heights > short
    return tiles[np.argsort(is_tall, kind="stable")], int((~is_tall).sum())


def list_decode_tiles(
    positions: Ints, page_table: NDArray[Any], tile_tokens: int, *, page_size: int, split_pages: int
) -> Tiles:
    """Return the tiles of spans of one token each, at these positions.

    Neighbours share a tile of up to `tile_tokens` if that saves reading splits. A split has `split_pages` pages; 0:
    nothing is shared.
    """
    count, width = page_table.shape
    tiles = np.zeros((count, TILE_COLUMNS), np.int32)
    tiles[:, 0] = np.arange(count)
    tiles[:, 1] = 1
    tiles[:, 2] = tiles[:, 0] * width
    if not split_pages or tile_tokens < 2 or width < split_pages:
        return tiles
    end_of_split = page_table[:, split_pages - 1]
    if not (end_of_split[1:] == end_of_split[:-1]).any():  # as in most passes
        return tiles
    split_len = split_pages * page_size
    differs = page_table[1:] != page_table[:-1]
    pages = np.where(differs.any(1), differs.argmax(1), width)
    written = (np.minimum(positions[1:], positions[:-1]) + 1) // split_len
    # Of each request: how many splits it has in common with the next one, and its last split.
    with_next, lasts = np.minimum(pages // split_pages, written).tolist(), (positions // split_len).tolist()
    rows, first = [], 0
    while first < count:
        size, common, own = _grow(first, with_next, lasts, tile_tokens)
        rows.append((first, size, first * width) + ((width, common, own) if size > 1 else (0, 0, 0)))
        first += size
    return np.array(rows, np.int32)


def _grow(first: int, with_next: list[int], lasts: list[int], most: int) -> tuple[int, int, int]:
    """Return the number of tokens of the tile that begins at this one, its common splits and its own ones."""
    size, common, own, last = 1, lasts[first] + 1, 0, lasts[first]
    for at in range(first, min(first + most, len(lasts)) - 1):
        shared, longest = min(common, with_next[at]), max(last, lasts[at + 1])
        further = longest + 1 - shared
        if not shared or shared + (size + 1) * further >= common + size * own + lasts[at + 1] + 1:
            break
        size, common, last, own = size + 1, shared, longest, further
    return size, common, own
