"""The input of a pass: spans become tensors in one buffer, which takes one copy to the device.

    words  | token_ids | positions | slots | tiles, states, page_table, span_starts | indices |
           | int64 [tokens] each           | int32                                  | int64   |

The place of everything before the page table depends only on the numbers of tokens and tiles. So a
CUDA graph can read it there, whatever the pass (`cuda_graphs.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.step_plan import SAMPLED_RING_SIZE, UNKNOWN_TOKEN, Pass, Span
from holdfast.numerics.arrays import Device, Tensor, arrays_on
from holdfast.numerics.attention_tiles import TILE_COLUMNS, Tiles, list_decode_tiles, list_tiles
from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch
from holdfast.worker.transfer import aligned, send, staging_buffer

Ints = NDArray[np.int64]
_NO_INTS: Ints = np.empty(0, np.int64)

_MAX_ROWS = 2048  # of cached page tables
_SPAN_NUMBERS = attrgetter("start", "sample_from", "request_index", "num_pooled")
STATE_COLUMNS = 6  # of `RecurrentBatch.spans`


@dataclass(frozen=True)
class InputBatch:
    """The tokens of a pass on the host, in span order, without padding. The last five arrays index
    tokens:

    logits_indices   tokens whose last hidden states are needed: scored tokens, then pooled, then sampled ones
    ring_read_*      tokens whose id is in the ring of sampled tokens (`SampledRing`)
    ring_write_*     sampled tokens whose id goes into the ring
    """

    token_ids: Ints  # [tokens]
    positions: Ints  # [tokens]
    slots: Ints  # [tokens]; -1: its KV is not written
    tiles: Tiles  # as in `ForwardBatch`
    page_table: NDArray[np.int32]  # [spans, max_pages]
    span_starts: NDArray[np.int32]  # [spans + 1]
    num_short_tiles: int = 0  # as in `ForwardBatch`
    states: NDArray[np.int32] | None = None  # `RecurrentBatch.spans`; None: no layer is recurrent
    num_request_indices: int = 0  # the ring must have so many
    num_scored: int = 0
    num_pooled: int = 0
    logits_indices: Ints = field(default_factory=lambda: _NO_INTS)
    ring_read_indices: Ints = field(default_factory=lambda: _NO_INTS)  # among all tokens
    ring_read_slots: Ints = field(default_factory=lambda: _NO_INTS)  # in the flat ring
    ring_write_indices: Ints = field(default_factory=lambda: _NO_INTS)  # among the sampled tokens
    ring_write_slots: Ints = field(default_factory=lambda: _NO_INTS)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def logits_come_first(self) -> bool:
        """Return whether the tokens whose logits are needed are the first ones, as in a pass that only decodes."""
        indices = self.logits_indices
        return self.num_scored + self.num_pooled == 0 and (
            not len(indices) or int(indices[-1]) == len(indices) - 1
        )


@dataclass(frozen=True)
class DeviceBatch:
    """An input batch on the device."""

    forward: ForwardBatch
    logits_indices: Tensor
    ring_read_indices: Tensor
    ring_read_slots: Tensor
    ring_write_indices: Tensor
    ring_write_slots: Tensor


@dataclass(frozen=True)
class Layout:
    """Where everything is in a buffer, in words of eight bytes. Tokens and tiles include padding."""

    num_tokens: int
    num_short_tiles: int
    num_tall_tiles: int
    table_shape: tuple[int, int]  # of the page table
    index_lengths: tuple[int, ...]  # of the index arrays at the end
    num_states: int = 0  # spans with a recurrent state, with padding

    @property
    def num_tiles(self) -> int:
        return self.num_short_tiles + self.num_tall_tiles

    @property
    def stride(self) -> int:
        """Words from the token ids to the positions, to the slots, and to the tiles."""
        return aligned(self.num_tokens, 8)

    @property
    def states_start(self) -> int:
        """Of the recurrent states, in int32 after the slots."""
        return aligned(TILE_COLUMNS * self.num_tiles, 4)

    @property
    def table_start(self) -> int:
        """Of the page table, in int32 after the slots."""
        return aligned(self.states_start + STATE_COLUMNS * self.num_states, 4)

    @property
    def span_starts_start(self) -> int:
        """Of the span starts, in int32 after the slots."""
        num_spans, width = self.table_shape
        return aligned(self.table_start + num_spans * width, 4)

    @property
    def indices_start(self) -> int:
        num_spans, _ = self.table_shape
        return 3 * self.stride + aligned(self.span_starts_start + num_spans + 1, 4) // 2

    @property
    def num_words(self) -> int:
        return self.indices_start + sum(self.index_lengths)

    def int32_words(self, words: Any) -> Any:
        """Return the words of a tensor or an array that hold int32."""
        return words[3 * self.stride : self.indices_start]

    def forward_batch(self, words: Tensor, num_replayed: int = 0) -> ForwardBatch:
        """Return views of the words. num_replayed: as in `RecurrentBatch`."""
        count, stride, (num_spans, width) = self.num_tokens, self.stride, self.table_shape
        ints = self.int32_words(words).view(arrays_on(words.device).int32)
        table = ints[self.table_start : self.table_start + num_spans * width]
        states = ints[self.states_start : self.states_start + STATE_COLUMNS * self.num_states]
        recurrent = RecurrentBatch(states.view(-1, STATE_COLUMNS), num_replayed) if self.num_states else None
        return ForwardBatch(
            token_ids=words[:count],
            positions=words[stride : stride + count],
            slots=words[2 * stride : 2 * stride + count],
            span_starts=ints[self.span_starts_start : self.span_starts_start + num_spans + 1],
            page_table=table.view(num_spans, width),
            tiles=ints[: TILE_COLUMNS * self.num_tiles].view(-1, TILE_COLUMNS) if self.num_tiles else None,
            num_short_tiles=self.num_short_tiles,
            recurrent=recurrent,
        )

    def device_batch(self, words: Tensor, forward: ForwardBatch) -> DeviceBatch:
        indices = words[self.indices_start : self.num_words]
        return DeviceBatch(forward, *arrays_on(words.device).split(indices, list(self.index_lengths)))


class PageTableCache:
    """Page tables as rows of one matrix, with zeros after the last page. Most requests have the same pages
    as a pass ago. A row is found by the identity of the tuple of pages: to hash it is to read it."""

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}  # by id of the tuple
        self._tuples: list[tuple[int, ...]] = []  # by row; alive, so that no id is reused
        self._matrix = np.zeros((64, 16), np.int32)

    def table(self, pages: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
        """Return int32 [len(pages), longest of them], a copy."""
        width = max(map(len, pages))
        if len(self._tuples) + len(pages) > _MAX_ROWS:
            self._row_of, self._tuples = {}, []
        self._grow(len(self._tuples) + len(pages), width)
        known = self._row_of.get
        rows = [known(id(each), -1) for each in pages]
        if -1 in rows:
            rows = [self._add(each) if row < 0 else row for row, each in zip(rows, pages, strict=True)]
        if len(rows) == 1:
            return self._matrix[rows[0] : rows[0] + 1, :width].copy()
        return self._matrix[rows, :width]

    def _add(self, pages: tuple[int, ...]) -> int:
        row = self._row_of.setdefault(id(pages), len(self._tuples))
        if row == len(self._tuples):  # else the tuple is in this table twice
            self._tuples.append(pages)
        self._matrix[row, : len(pages)] = pages
        self._matrix[row, len(pages) :] = 0
        return row

    def _grow(self, num_rows: int, width: int) -> None:
        rows, columns = self._matrix.shape
        if num_rows > rows or width > columns:
            larger = np.zeros((_padded_size(rows, num_rows), _padded_size(columns, width)), np.int32)
            larger[:rows, :columns] = self._matrix
            self._matrix = larger


def _padded_size(size: int, needed: int) -> int:
    return size if needed <= size else 1 << (needed - 1).bit_length()


def make_input_batch(
    pass_: Pass,
    page_size: int,
    tile_tokens: Callable[[int], int] = lambda span_len: 0,
    page_tables: PageTableCache | None = None,
    split_pages: int = 0,
) -> InputBatch:
    """Make the tensors of a pass.

    tile_tokens: how many tokens an attention tile of a span of this length holds; 0: the backend uses no tiles.
    split_pages: as in `list_decode_tiles`.
    """
    spans = pass_.spans
    if not tile_tokens(1) and all(map(_is_plain_token, spans)):
        return _decode_batch(spans, page_size, page_tables or PageTableCache())
    token_ids = [span.token_ids for span in spans]
    index = _SpanIndex(np.fromiter(map(len, token_ids), np.int64, len(spans)))
    numbers = np.fromiter(chain.from_iterable(map(_SPAN_NUMBERS, spans)), np.int64, 4 * len(spans))
    starts, sample_from, request_indices, num_pooled = numbers.reshape(-1, 4).T  # [spans] each
    positions = index.per_token(starts) + index.offsets
    ids = np.fromiter(chain.from_iterable(token_ids), np.int64, index.num_tokens)
    table = (page_tables or PageTableCache()).table([span.pages for span in spans])
    slots = table[index.span_of, positions // page_size].astype(np.int64) * page_size + positions % page_size
    if not tile_tokens(1):
        tiles, num_short_tiles = np.empty((0, TILE_COLUMNS), np.int32), 0
    elif index.is_one_each:
        tiles = list_decode_tiles(
            positions, table, tile_tokens(1), page_size=page_size, split_pages=split_pages
        )
        num_short_tiles = len(tiles)
    else:
        tiles, num_short_tiles = list_tiles(index.starts, tile_tokens, table.shape[1])
    sampled = np.flatnonzero(index.offsets >= index.per_token(sample_from))
    scored_ids = [span.scored_ids for span in spans]
    scored = pooled = _NO_INTS
    if any(scored_ids):
        scored = _before(sample_from, index, np.fromiter(map(len, scored_ids), np.int64, len(spans)))
        num_cached = np.array([span.num_cached for span in spans])
        slots[index.offsets < index.per_token(num_cached)] = -1
    if num_pooled.any():
        pooled = _before(sample_from, index, num_pooled)
    ring_starts = index.per_token(request_indices) * SAMPLED_RING_SIZE  # [tokens]; negative: not in the ring
    unknown = np.flatnonzero(ids == UNKNOWN_TOKEN)
    assert (ring_starts[unknown] >= 0).all(), "an unknown token needs a request index"
    written = np.flatnonzero(ring_starts[sampled] >= 0)
    if index.longest > SAMPLED_RING_SIZE:  # only the last are written: two writes to a slot have no order
        to_end = index.starts[index.span_of + 1] - np.arange(index.num_tokens)
        written = written[to_end[sampled[written]] <= SAMPLED_RING_SIZE]
    writers = sampled[written]
    return InputBatch(
        token_ids=ids,
        positions=positions,
        slots=slots,
        tiles=tiles,
        page_table=table,
        span_starts=index.starts.astype(np.int32),
        num_short_tiles=num_short_tiles,
        states=_states(spans, index.starts),
        num_request_indices=int(request_indices.max()) + 1,
        num_scored=len(scored),
        num_pooled=len(pooled),
        logits_indices=np.concatenate((scored, pooled, sampled)) if len(scored) + len(pooled) else sampled,
        ring_read_indices=unknown,
        ring_read_slots=ring_starts[unknown] + positions[unknown] % SAMPLED_RING_SIZE,
        ring_write_indices=written,
        ring_write_slots=ring_starts[writers] + (positions[writers] + 1) % SAMPLED_RING_SIZE,
    )


def _is_plain_token(span: Span) -> bool:
    """Return whether the span is one token to sample from, which no ring holds."""
    return (
        len(span.token_ids) == 1
        and span.sample_from == 0
        and span.request_index < 0
        and not span.num_pooled
        and not span.scored_ids
    )


def _decode_batch(spans: Sequence[Span], page_size: int, page_tables: PageTableCache) -> InputBatch:
    """Make the batch of plain tokens without tiles: most passes on a CPU."""
    count = len(spans)
    ids = [span.token_ids[0] for span in spans]
    assert UNKNOWN_TOKEN not in ids, "an unknown token needs a request index"
    positions = [span.start for span in spans]
    slots = [
        span.pages[at // page_size] * page_size + at % page_size
        for span, at in zip(spans, positions, strict=True)
    ]
    return InputBatch(
        token_ids=np.array(ids),
        positions=np.array(positions),
        slots=np.array(slots),
        tiles=np.empty((0, TILE_COLUMNS), np.int32),
        page_table=page_tables.table([span.pages for span in spans]),
        span_starts=np.arange(count + 1, dtype=np.int32),
        states=_states(spans, np.arange(count + 1)),
        logits_indices=np.arange(count),
    )


def _states(spans: Sequence[Span], starts: Ints) -> NDArray[np.int32] | None:
    """Return `RecurrentBatch.spans`. starts: of the spans' tokens."""
    if all(span.state is None for span in spans):
        return None
    rows = [
        (-1, 0, 0, 0, 0, 0)
        if (state := span.state) is None
        else (state.slot, span.start, state.checkpoint, state.store, first, first + len(span.token_ids))
        for span, first in zip(spans, starts.tolist(), strict=False)
    ]
    return np.array(rows, np.int32)


def num_replayed(states: NDArray[np.int32]) -> int:
    """Return how many tokens before its spans a pass computes again."""
    return int((states[:, 1] - states[:, 2]).sum())


class _SpanIndex:
    """Which token belongs to which span. The common case, one token in each span, is fast."""

    def __init__(self, lengths: Ints) -> None:
        self.lengths = lengths
        self.num_tokens, self.longest = int(lengths.sum()), int(lengths.max())
        self.is_one_each = self.longest == 1 and self.num_tokens == len(lengths)
        if self.is_one_each:
            self.starts = np.arange(self.num_tokens + 1)  # [spans + 1]
            self.span_of = self.starts[:-1]  # [tokens]
            self.offsets = np.zeros(self.num_tokens, np.int64)  # [tokens], within the span
        else:
            self.starts = np.concatenate(([0], np.cumsum(lengths)))
            self.span_of = np.repeat(np.arange(len(lengths)), lengths)
            self.offsets = np.arange(self.num_tokens) - self.starts[self.span_of]

    def per_token(self, per_span: Ints) -> Ints:
        """[spans] -> [tokens]"""
        return per_span if self.is_one_each else per_span[self.span_of]


def layout_of(
    batch: InputBatch,
    num_tokens: int,
    num_tiles: tuple[int, int] | None = None,
    num_states: int | None = None,
) -> Layout:
    """Return the layout of the batch padded to `num_tokens`, to `num_tiles` short and tall tiles, and to
    `num_states` spans with a recurrent state."""
    short, tall = num_tiles or (batch.num_short_tiles, len(batch.tiles) - batch.num_short_tiles)
    num_spans, width = batch.page_table.shape
    lengths = tuple(map(len, _index_arrays(batch)))
    if num_states is None:
        num_states = 0 if batch.states is None else len(batch.states)
    return Layout(num_tokens, short, tall, (num_spans, width), lengths, num_states)


def fill_buffer(words: Ints, batch: InputBatch, layout: Layout) -> None:
    """Write the batch and its padding into a buffer of at least `layout.num_words`."""
    stride, count = layout.stride, batch.num_tokens
    for at, (array, padding) in enumerate(((batch.token_ids, 0), (batch.positions, 0), (batch.slots, -1))):
        words[at * stride : at * stride + count] = array
        words[at * stride + count : (at + 1) * stride] = padding
    ints = layout.int32_words(words).view(np.int32)
    ints[: layout.table_start] = 0
    short, tall = np.split(batch.tiles.reshape(-1), [TILE_COLUMNS * batch.num_short_tiles])
    ints[: short.size] = short
    first_tall = TILE_COLUMNS * layout.num_short_tiles
    ints[first_tall : first_tall + tall.size] = tall
    ints[layout.states_start : layout.table_start] = -1
    if batch.states is not None:
        ints[layout.states_start : layout.states_start + batch.states.size] = batch.states.reshape(-1)
    ints[layout.table_start : layout.table_start + batch.page_table.size] = batch.page_table.reshape(-1)
    start = layout.span_starts_start
    ints[start : start + len(batch.span_starts)] = batch.span_starts
    words[layout.indices_start : layout.num_words] = np.concatenate(_index_arrays(batch))


def send_batch(batch: InputBatch, num_tokens: int, device: Device) -> DeviceBatch:
    """Pad the batch to `num_tokens` and send it. On a CPU it shares the batch's memory."""
    if device.type == "cpu":
        return _host_batch(batch, num_tokens, arrays_on(device).from_numpy)
    layout = layout_of(batch, num_tokens)
    host = staging_buffer(layout.num_words, device)
    fill_buffer(host.numpy(), batch, layout)
    words = send(host, device)
    count = 0 if batch.states is None else num_replayed(batch.states)
    return layout.device_batch(words, layout.forward_batch(words, count))


def _host_batch(
    batch: InputBatch, num_tokens: int, from_numpy: Callable[[NDArray[Any]], Tensor]
) -> DeviceBatch:
    forward = ForwardBatch(
        token_ids=from_numpy(_pad(batch.token_ids, num_tokens, 0)),
        positions=from_numpy(_pad(batch.positions, num_tokens, 0)),
        slots=from_numpy(_pad(batch.slots, num_tokens, -1)),
        span_starts=from_numpy(batch.span_starts),
        page_table=from_numpy(np.ascontiguousarray(batch.page_table)),  # read by address
        tiles=from_numpy(batch.tiles) if len(batch.tiles) else None,
        num_short_tiles=batch.num_short_tiles,
        recurrent=None
        if batch.states is None
        else RecurrentBatch(from_numpy(batch.states), num_replayed(batch.states)),
    )
    return DeviceBatch(forward, *map(from_numpy, _index_arrays(batch)))


def _pad(array: Ints, length: int, padding: int) -> Ints:
    if len(array) == length:
        return array
    padded = np.full(length, padding)
    padded[: len(array)] = array
    return padded


def _before(stops: Ints, index: _SpanIndex, counts: Ints) -> Ints:
    """Return the indices of the `counts[i]` tokens of span i that end just before `stops[i]`, its first
    sampled token."""
    assert (counts <= stops).all(), "a scored or pooled token must be one of its own span"
    offsets = index.offsets
    return np.flatnonzero((offsets >= index.per_token(stops - counts)) & (offsets < index.per_token(stops)))


def _index_arrays(batch: InputBatch) -> tuple[Ints, ...]:
    """Return the index arrays in the order of `DeviceBatch`."""
    return (
        batch.logits_indices,
        batch.ring_read_indices,
        batch.ring_read_slots,
        batch.ring_write_indices,
        batch.ring_write_slots,
    )
