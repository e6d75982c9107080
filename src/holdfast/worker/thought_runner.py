"""States beside the pages: what a pass of a model that thinks reads and writes more than a plain one.

Every slot of the KV store has three things more:

    rows      what T reads of its position: the residual stream behind l_out layers
    states    what C made of the thought behind its chunk, a vector for each of the chunk's slots
    told      whether that thought was not the trivial one

The row at position p adds the state at the slot of p - c, if it is told; so a state lies in the page of the chunk it was made
from, and is cached, truncated and computed again with it. Before a pass the states its guesses give are put there, behind it
those of what was really thought.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.core.step_plan import Pass, Span, ThoughtIds
from holdfast.errors import ConfigError
from holdfast.models.decoder import Decoder, LayerHook
from holdfast.numerics.backends.cpu_pages import untouched_zeros
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.thinking.blocks import ThoughtBlocks
from holdfast.worker.cuda_graphs import Recorder
from holdfast.worker.input_batch import InputBatch, Ints
from holdfast.worker.thought_graphs import ThoughtGraphs
from holdfast.worker.transfer import send_array


@dataclass(frozen=True)
class _Chunk:
    """A chunk that ends among a span's rows."""

    span: int
    number: int
    first_slot: int


class ThoughtRunner:
    """T, C and their states, over the slots of a KV store."""

    def __init__(self, decoder: Decoder, blocks: ThoughtBlocks, num_pages: int) -> None:
        self._decoder = decoder
        self._blocks = blocks
        self._config = blocks.config
        self.chunk = blocks.config.chunk
        self._page_size = decoder.backend.page_size
        assert self._page_size % self._config.chunk == 0, "a chunk lies within a page"
        device, num_slots = decoder.backend.device, num_pages * self._page_size
        hidden = decoder.config.hidden_size
        # One more than there are slots: padding, whose slot is -1, is written to the last, and nothing is told there.
        try:
            self.rows, self.states = (
                _zeros((num_slots + 1, hidden), decoder.dtype, device) for _ in range(2)
            )
        except (MemoryError, RuntimeError) as error:  # torch's own is one
            raise ConfigError(
                f"the states beside {num_pages} KV pages cannot be allocated; lower kv_memory"
            ) from error
        self.told = torch.zeros(num_slots + 1, dtype=torch.bool, device=device)
        self._graphs: ThoughtGraphs | None = None
        self._read_from = torch.empty(0, dtype=torch.int64, device=device)  # what captured passes read

    @property
    def looks_behind_the_last_layer(self) -> bool:
        return self._config.l_out == len(self._decoder.layers)

    def capture(self, most_rows: int, recorder: Recorder) -> None:
        """T as graphs, and a place that captured passes of up to so many rows read from."""
        self._read_from = torch.full((most_rows,), -1, dtype=torch.int64, device=self.rows.device)
        self._graphs = ThoughtGraphs(self._blocks, self.rows, recorder)

    def begin(self, one: Pass, batch: InputBatch) -> Tensor:
        """The guesses' states are put in place. Returns whose state each row adds: slots, int64 [padded rows]."""
        chunks = [chunk for number, span in enumerate(one.spans) for chunk in self._ends(number, span)]
        guessed: list[_Chunk] = []
        guesses: list[ThoughtIds] = []
        for chunk in chunks:
            span = one.spans[chunk.span]
            place = chunk.number - span.start // self._config.chunk
            if place < len(span.guesses):
                guessed.append(chunk)
                guesses.append(span.guesses[place])
        self._put(guessed, guesses)
        return send_array(self._state_slots(one, batch), self.rows.device)

    def load(self, read_from: Tensor, num_rows: int) -> None:
        """For the captured pass of so many rows that is replayed next."""
        self._read_from[:num_rows].fill_(-1)
        self._read_from[: len(read_from)].copy_(read_from)

    def captured_layer_hook(self, rows: ForwardBatch) -> LayerHook:
        """For a pass that is captured."""
        return self.layer_hook(rows.slots, self._read_from[: rows.num_tokens])

    def layer_hook(self, slots: Tensor, read_from: Tensor) -> LayerHook:
        """What stands between the layers of a pass; the rows' own slots and those of the states they add, -1 for none."""
        config, ops, shape = self._config, self._decoder.backend, self._decoder.layer_shape
        norm = self._decoder.layers[config.l_in - 1].next_norm

        def act(layers_done: int, residual: Tensor, x: Tensor) -> None:
            if layers_done == config.l_in:
                # At the pass's padded total, which is what is certified.
                is_told = self.told[read_from][:, None]
                residual.copy_(torch.where(is_told, residual + self.states[read_from], residual))
                x.copy_(torch.where(is_told, ops.rms_norm(residual, norm, shape.eps), x))
            if layers_done == config.l_out:
                self.rows[slots] = residual

        return LayerHook(act, config.l_out)

    def finish(self, one: Pass, *, canonical: bool) -> tuple[tuple[ThoughtIds, ...], ...]:
        """What is thought behind every chunk that ended in the pass, by span; its state is put in place."""
        chunks = [chunk for number, span in enumerate(one.spans) for chunk in self._ends(number, span)]
        thoughts = [self._known(one.spans[chunk.span], chunk) for chunk in chunks]
        open_ones = [place for place, thought in enumerate(thoughts) if thought is None]
        if open_ones:
            slots = self._slots([chunks[place] for place in open_ones])  # [n, c]
            found = self._think(slots, canonical)
            for place, thought in zip(open_ones, found, strict=True):
                thoughts[place] = thought
        decided = [thought or () for thought in thoughts]
        self._put(chunks, decided)
        by_span: list[list[ThoughtIds]] = [[] for _ in one.spans]
        for chunk, thought in zip(chunks, decided, strict=True):
            by_span[chunk.span].append(thought)
        return tuple(map(tuple, by_span))

    def copy_pages(self, source: Tensor, target: Tensor) -> None:
        """Whole pages, int64 [n] both."""
        for tensor in (self.rows, self.states, self.told):
            paged = tensor[:-1].view(-1, self._page_size, *tensor.shape[1:])
            paged[target] = paged[source]

    def _think(self, slots: Tensor, canonical: bool) -> list[ThoughtIds]:
        if self._graphs is None:
            return self._blocks.think(self.rows[slots], canonical=canonical)
        return self._graphs.think(slots, canonical=canonical)

    def _known(self, span: Span, chunk: _Chunk) -> ThoughtIds | None:
        """A thought that T need not write; None: it must."""
        assert span.rule is not None
        if not span.rule.thinks(chunk.number, self._config.chunk):
            return ()
        return span.rule.forced_on(chunk.number)

    def _ends(self, number: int, span: Span) -> list[_Chunk]:
        """The chunks that end in the span; none if it is not one to think about."""
        if span.rule is None:
            return []
        c, size = self._config.chunk, self._page_size
        return [
            _Chunk(number, chunk, span.pages[chunk * c // size] * size + chunk * c % size)
            for chunk in range(span.start // c, span.stop // c)
        ]

    def _put(self, chunks: Sequence[_Chunk], thoughts: Sequence[ThoughtIds]) -> None:
        """The states of these thoughts behind these chunks."""
        if not chunks:
            return
        slots = self._slots(chunks)
        is_told = np.array([bool(thought) for thought in thoughts])
        self.told[slots] = send_array(is_told, slots.device)[:, None]
        if is_told.any():
            where = send_array(np.flatnonzero(is_told), slots.device)
            self.states[slots[where]] = self._blocks.compress([thought for thought in thoughts if thought])

    def _slots(self, chunks: Sequence[_Chunk]) -> Tensor:
        """int64 [n, c]."""
        first = np.array([chunk.first_slot for chunk in chunks], np.int64)
        return send_array(first[:, None] + np.arange(self._config.chunk), self.rows.device)

    def _state_slots(self, one: Pass, batch: InputBatch) -> Ints:
        """For each row the slot whose state it adds, -1 for none, as for padding: int64 [padded rows]."""
        lengths = np.diff(batch.span_starts)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        back = batch.positions - self._config.chunk
        pages = batch.page_table[owners, np.maximum(back, 0) // self._page_size].astype(np.int64)
        thinks = np.array([span.rule is not None for span in one.spans])[owners]
        slots = np.where(thinks & (back >= 0), pages * self._page_size + back % self._page_size, -1)
        return np.pad(slots, (0, one.num_tokens_padded - len(slots)), constant_values=-1)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """In main memory they cost nothing until they are written, as pages do."""
    if device.type == "cpu":
        return untouched_zeros(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
