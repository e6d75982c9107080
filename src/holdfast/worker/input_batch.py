"""From the spans of a pass to its rows as tensors, by way of one buffer, so that one copy brings them to the device.

    words  | token_ids | positions | slots | tiles, page_table, span_starts | wanted, known from, ... |
           | int64 [rows] each             | int32                          | int64                   |

What stands before the page table has a place that depends on the numbers of rows and tiles alone: a captured graph reads it
there, whatever the pass (`graphs.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.step_plan import SAMPLED_RING_SIZE, UNKNOWN_TOKEN, Pass
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.worker.page_table_cache import PageTableCache
from holdfast.worker.transfer import aligned, send, staging

Ints = NDArray[np.int64]

_CPU = torch.device("cpu")
_NUMBERS = attrgetter("start", "sample_from", "request_index")  # of a span


@dataclass(frozen=True)
class InputBatch:
    """A pass in numbers, on the host, without its padding. ForwardBatch stand in span order."""

    token_ids: Ints  # [rows]
    positions: Ints  # [rows]
    slots: Ints  # [rows]
    tiles: NDArray[np.int32]  # [tiles, 3], as in `ForwardBatch`
    page_table: NDArray[np.int32]  # [spans, max_pages]
    span_starts: NDArray[np.int32]  # [spans + 1]
    num_short_tiles: int  # as in `ForwardBatch`
    num_request_indices: int  # that there must be
    num_scored: int
    wanted: Ints  # the rows whose logits are asked for: before given tokens, then the sampled ones
    unknown: Ints  # the rows whose token is not known yet
    unknown_from: Ints  # where it will stand in the lanes
    told: Ints  # the sampled rows, by their place among them, whose tokens go into the lanes
    told_to: Ints  # where in the lanes

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def wants_first_rows(self) -> bool:
        """Whether the rows wanted are the first ones, in order, as in a pass of decode rows."""
        return self.num_scored == 0 and (not len(self.wanted) or int(self.wanted[-1]) == len(self.wanted) - 1)


@dataclass(frozen=True)
class DeviceBatch:
    """A batch on the device."""

    rows: ForwardBatch
    wanted: Tensor
    unknown: Tensor
    unknown_from: Tensor
    told: Tensor
    told_to: Tensor


@dataclass(frozen=True)
class Layout:
    """Where everything stands in a buffer, in words of eight bytes; rows and tiles with their padding."""

    num_rows: int
    num_short_tiles: int
    tall_tiles: int
    table_shape: tuple[int, int]  # of the page table
    extras: tuple[int, ...]  # how long each of the arrays behind the rows is

    @property
    def num_tiles(self) -> int:
        return self.num_short_tiles + self.tall_tiles

    @property
    def stride(self) -> int:
        """Words from the token ids to the positions, and on to the slots and what is behind them."""
        return aligned(self.num_rows, 8)

    @property
    def table_at(self) -> int:
        """Where the page table begins, in integers of four bytes behind the slots."""
        return aligned(3 * self.num_tiles, 4)

    @property
    def starts_at(self) -> int:
        """Where the spans' starts stand, in the same."""
        num_spans, width = self.table_shape
        return aligned(self.table_at + num_spans * width, 4)

    @property
    def extras_at(self) -> int:
        num_spans, _ = self.table_shape
        return 3 * self.stride + aligned(self.starts_at + num_spans + 1, 4) // 2

    @property
    def num_words(self) -> int:
        return self.extras_at + sum(self.extras)

    def ints(self, words: Any) -> Any:
        """The part of a tensor or an array of words that holds integers of four bytes, as words."""
        return words[3 * self.stride : self.extras_at]

    def rows(self, words: Tensor) -> ForwardBatch:
        count, stride, (num_spans, width) = self.num_rows, self.stride, self.table_shape
        ints = self.ints(words).view(torch.int32)
        table = ints[self.table_at : self.table_at + num_spans * width]
        return ForwardBatch(
            token_ids=words[:count],
            positions=words[stride : stride + count],
            slots=words[2 * stride : 2 * stride + count],
            span_starts=ints[self.starts_at : self.starts_at + num_spans + 1],
            page_table=table.view(num_spans, width),
            tiles=ints[: 3 * self.num_tiles].view(-1, 3) if self.num_tiles else None,
            num_short_tiles=self.num_short_tiles,
        )

    def sent(self, words: Tensor, rows: ForwardBatch) -> DeviceBatch:
        return DeviceBatch(rows, *torch.split(words[self.extras_at : self.num_words], list(self.extras)))


def batch_of(
    one: Pass,
    page_size: int,
    tile_tokens: Callable[[int], int] = lambda span_len: 0,
    pages: PageTableCache | None = None,
) -> InputBatch:
    """tile_tokens says how many rows a tile of a span of so many holds; 0: there are no tiles."""
    spans = one.spans
    token_ids = [span.token_ids for span in spans]
    rows = _Placement(np.fromiter(map(len, token_ids), np.int64, len(spans)))
    numbers = np.fromiter(chain.from_iterable(map(_NUMBERS, spans)), np.int64, 3 * len(spans))
    starts, sampled_from, lanes = numbers.reshape(-1, 3).T  # [spans] each
    positions = rows.spread(starts) + rows.places
    ids = np.fromiter(chain.from_iterable(token_ids), np.int64, rows.count)
    table = (pages or PageTableCache()).table([span.pages for span in spans])
    slots = table[rows.owners, positions // page_size].astype(np.int64) * page_size + positions % page_size
    tiles, num_short_tiles = _tiles(rows, tile_tokens, table.shape[1])
    sampled = np.flatnonzero(rows.places >= rows.spread(sampled_from))
    given = _given(rows, [span.scored_ids for span in spans], sampled_from)
    rings = rows.spread(lanes) * SAMPLED_RING_SIZE  # [rows], where each row's lane begins
    unknown = np.flatnonzero(ids == UNKNOWN_TOKEN)
    assert (rings[unknown] >= 0).all(), "an unknown token needs a request index"
    told = np.flatnonzero(rings[sampled] >= 0)
    if rows.longest > SAMPLED_RING_SIZE:  # its last rows stay: two writes to one place have no order
        told = told[
            (rows.bounds[rows.owners + 1] - np.arange(rows.count))[sampled[told]] <= SAMPLED_RING_SIZE
        ]
    told_rows = sampled[told]
    return InputBatch(
        token_ids=ids,
        positions=positions,
        slots=slots,
        tiles=tiles,
        page_table=table,
        span_starts=rows.bounds.astype(np.int32),
        num_short_tiles=num_short_tiles,
        num_request_indices=int(lanes.max()) + 1,
        num_scored=len(given),
        wanted=np.concatenate((given, sampled)) if len(given) else sampled,
        unknown=unknown,
        unknown_from=rings[unknown] + positions[unknown] % SAMPLED_RING_SIZE,
        told=told,
        told_to=rings[told_rows] + (positions[told_rows] + 1) % SAMPLED_RING_SIZE,
    )


class _Placement:
    """Which row is of which span. Nearly always each span has one row, and what is said of spans is said of rows."""

    def __init__(self, lengths: Ints) -> None:
        self.lengths = lengths
        self.count, self.longest = int(lengths.sum()), int(lengths.max())
        self.is_plain = self.longest == 1 and self.count == len(lengths)
        if self.is_plain:
            self.bounds = np.arange(self.count + 1)  # [spans + 1]
            self.owners = self.bounds[:-1]  # [rows]
            self.places = np.zeros(self.count, np.int64)  # [rows], within the span
        else:
            self.bounds = np.concatenate(([0], np.cumsum(lengths)))
            self.owners = np.repeat(np.arange(len(lengths)), lengths)
            self.places = np.arange(self.count) - self.bounds[self.owners]

    def spread(self, of_spans: Ints) -> Ints:
        """[spans] -> [rows]"""
        return of_spans if self.is_plain else of_spans[self.owners]


def layout_of(batch: InputBatch, num_rows: int, room: tuple[int, int] | None = None) -> Layout:
    """The batch padded to so many rows and, for a graph, so many short and tall tiles."""
    extras = tuple(map(len, _extras(batch)))
    short, tall = room or (batch.num_short_tiles, len(batch.tiles) - batch.num_short_tiles)
    num_spans, width = batch.page_table.shape
    return Layout(num_rows, short, tall, (num_spans, width), extras)


def fill(words: Ints, batch: InputBatch, layout: Layout) -> None:
    """The batch and its padding into a buffer of at least `layout.num_words`."""
    stride, count = layout.stride, batch.num_rows
    for at, (array, padding) in enumerate(((batch.token_ids, 0), (batch.positions, 0), (batch.slots, -1))):
        words[at * stride : at * stride + count] = array
        words[at * stride + count : (at + 1) * stride] = padding
    ints = layout.ints(words).view(np.int32)
    ints[: layout.table_at] = 0
    short, tall = np.split(batch.tiles.reshape(-1), [3 * batch.num_short_tiles])
    ints[: short.size] = short
    ints[3 * layout.num_short_tiles : 3 * layout.num_short_tiles + tall.size] = tall
    ints[layout.table_at : layout.table_at + batch.page_table.size] = batch.page_table.reshape(-1)
    ints[layout.starts_at : layout.starts_at + len(batch.span_starts)] = batch.span_starts
    words[layout.extras_at : layout.num_words] = np.concatenate(_extras(batch))


def send_batch(batch: InputBatch, num_rows: int, device: torch.device) -> DeviceBatch:
    """The batch padded to so many rows, in memory of its own."""
    layout = layout_of(batch, num_rows)
    host = staging(layout.num_words, device)
    fill(host.numpy(), batch, layout)
    words = send(host, device)
    return layout.sent(words, layout.rows(words))


def rows_of(one: Pass, page_size: int, *, tile_tokens: int = 0, device: torch.device = _CPU) -> ForwardBatch:
    """The pass's rows in span order, padded behind them; with tiles of so many rows if the path takes any."""
    return send_batch(
        batch_of(one, page_size, lambda span_len: tile_tokens), one.num_tokens_padded, device
    ).rows


def _tiles(
    rows: _Placement, tile_tokens: Callable[[int], int], num_pages: int
) -> tuple[NDArray[np.int32], int]:
    """Every span cut into tiles, int32 [tiles, 3], those of short spans first; and how many these are."""
    short, lengths = tile_tokens(1), rows.lengths
    if not short:
        return np.empty((0, 3), np.int32), 0
    if rows.is_plain:
        tiles = np.ones((rows.count, 3), np.int32)
        tiles[:, 0] = rows.owners
        tiles[:, 2] = rows.owners * num_pages
        return tiles, rows.count
    heights = np.full(len(lengths), short)
    for index in np.flatnonzero(lengths > short):
        heights[index] = tile_tokens(int(lengths[index]))
    counts = -(-lengths // heights)  # of tiles, by span
    owners = np.repeat(np.arange(len(lengths)), counts)  # [tiles]
    heights = heights[owners]
    before = np.cumsum(counts) - counts  # tiles of earlier spans
    skipped = (np.arange(len(owners)) - before[owners]) * heights  # rows before, in the span
    tiles = np.empty((len(owners), 3), np.int32)
    tiles[:, 0] = rows.bounds[owners] + skipped
    tiles[:, 1] = np.minimum(lengths[owners] - skipped, heights)
    tiles[:, 2] = owners * num_pages
    is_tall = heights > short
    return tiles[np.argsort(is_tall, kind="stable")], int((~is_tall).sum())


def _given(rows: _Placement, given: Sequence[tuple[int, ...]], stops: Ints) -> Ints:
    """Which rows of the pass stand before a given token."""
    if not any(given):
        return np.empty(0, np.int64)
    counts = np.fromiter(map(len, given), np.int64, len(given))
    assert (counts <= stops).all(), "a given token stands behind a row of its own span"
    places = rows.places
    return np.flatnonzero((places >= rows.spread(stops - counts)) & (places < rows.spread(stops)))


def _extras(batch: InputBatch) -> tuple[Ints, ...]:
    """In the order of `DeviceBatch`."""
    return batch.wanted, batch.unknown, batch.unknown_from, batch.told, batch.told_to
