"""T, C and their states in a thinking model: what its passes read and write besides the KV cache.

Every slot of the KV store has three more entries:

    residuals   T's input at its position: the residual stream after l_out layers
    states      C's output for the thought after its chunk, one vector for each slot of the chunk
    has_state   whether that thought is not the trivial one

The token at position p adds the state at the slot of p - c, if it has one. So a state is in the
page of the chunk it was made from, and is cached, truncated and recomputed with it. Before a pass
the states of its guessed thoughts are written; after it, the states of the thoughts that T wrote.
In a model that carries its states, a chunk with the trivial thought has a copy of the entries of the
chunk before it, unless a message begins in it.

The chunk that is closed before the prompt's last token has its entries from then on, and all its later tokens add
the state at their own slot. T reads the c tokens before that one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.core.results import ThoughtIds
from holdfast.core.step_plan import Pass, Span
from holdfast.errors import ConfigError
from holdfast.models.decoder import Decoder, LayerHook
from holdfast.numerics.arrays import Device, DType, Tensor, arrays_on
from holdfast.numerics.backends.cpu import untouched_zeros
from holdfast.numerics.bits import bits_of
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.thinking.blocks import ThoughtBlocks
from holdfast.thinking.graphs import ThoughtGraphs
from holdfast.thinking.log import SpanThoughts, guesses_of, thoughts_of
from holdfast.worker.cuda_graphs import Recorder
from holdfast.worker.input_batch import InputBatch, Ints
from holdfast.worker.transfer import HostCopies, send_array

_NEVER = 1 << 62  # a position


@dataclass(frozen=True)
class _Chunk:
    """A chunk that is closed in a span."""

    span: int  # index in the pass
    number: int  # in the request
    first_slot: int
    length: int  # tokens when it is closed
    slot_before: int  # first slot of the chunk before it; -1: it is the first
    thoughts: SpanThoughts  # of the span


class ThoughtRunner:
    """T, C and their states, over the slots of a KV store. A `PassExtension`."""

    def __init__(self, decoder: Decoder, blocks: ThoughtBlocks, num_pages: int) -> None:
        self._decoder = decoder
        self._blocks = blocks
        self._config = blocks.config
        self.chunk = blocks.config.chunk
        self._page_size = decoder.backend.page_size
        assert self._page_size % self._config.chunk == 0, "a chunk must lie within a page"
        device, num_slots = decoder.backend.device, num_pages * self._page_size
        hidden = decoder.config.hidden_size
        # One more than there are slots: padding has slot -1, the last one, which never has a state.
        try:
            self.residuals, self.states = (
                _zeros((num_slots + 1, hidden), decoder.dtype, device) for _ in range(2)
            )
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError
            raise ConfigError(
                f"the thinking states of {num_pages} KV pages cannot be allocated; lower kv_memory"
            ) from error
        xp = self._arrays = arrays_on(device)
        self.has_state = xp.zeros(num_slots + 1, dtype=xp.bool)
        self._graphs: ThoughtGraphs | None = None
        self._state_slots = xp.empty(0, dtype=xp.int64)  # input of captured passes

    @property
    def needs_all_tokens(self) -> bool:
        """Return whether T reads the output of the last layer."""
        return self._config.l_out == len(self._decoder.layers)

    def capture(self, max_tokens: int, recorder: Recorder) -> None:
        """Capture T as CUDA graphs. Allocate the state slots that captured passes read."""
        self._state_slots = self._arrays.full((max_tokens,), -1, dtype=self._arrays.int64)
        self._graphs = ThoughtGraphs(self._blocks, self.residuals, recorder)

    def release(self) -> None:
        self._graphs = None

    def begin(self, pass_: Pass, batch: InputBatch) -> Tensor:
        """Write the states of the guessed thoughts. Return the slot whose state each token adds, -1 for
        none: int64 [padded tokens]."""
        guessed: list[_Chunk] = []
        guesses: list[ThoughtIds] = []
        for chunk in self._finished_chunks(pass_):
            start = pass_.spans[chunk.span].start
            index = chunk.number - chunk.thoughts.rule.num_closed(start, self._config.chunk)
            if index < len(chunk.thoughts.guesses):
                guessed.append(chunk)
                guesses.append(chunk.thoughts.guesses[index])
        self._write_states(guessed, guesses)
        return send_array(self._find_state_slots(pass_, batch), self.residuals.device)

    def load(self, state_slots: Tensor, size: int) -> None:
        self._state_slots[:size].fill_(-1)
        self._state_slots[: len(state_slots)].copy_(state_slots)

    def hook(self, batch: ForwardBatch, state_slots: Tensor | None) -> LayerHook:
        """Add states after l_in layers and keep residuals after l_out."""
        slots = batch.slots  # of the tokens themselves
        given = self._state_slots[: batch.num_tokens] if state_slots is None else state_slots
        config, backend, shape = self._config, self._decoder.backend, self._decoder.layer_shape
        norm = self._decoder.layers[config.l_in - 1].next_norm
        assert norm is not None

        def act(layers_done: int, residual: Tensor, x: Tensor) -> None:
            if layers_done == config.l_in:
                # For all tokens of the padded pass: that is the batch size that is certified.
                has_state = self.has_state[given][:, None]
                residual.copy_(self._arrays.where(has_state, residual + self.states[given], residual))
                x.copy_(self._arrays.where(has_state, backend.rms_norm(residual, norm, shape.eps), x))
            if layers_done == config.l_out:
                self.residuals[slots] = residual

        return LayerHook(act, (config.l_in, config.l_out))

    def finish(self, pass_: Pass, *, canonical: bool) -> tuple[tuple[ThoughtIds, ...], ...]:
        """Run T after every chunk that is closed in the pass, and write the states. Return the thoughts."""
        chunks = self._finished_chunks(pass_)
        thoughts = [self._given_thought(chunk) for chunk in chunks]
        unknown = [index for index, thought in enumerate(thoughts) if thought is None]
        if unknown:
            slots = self._read_slots([chunks[index] for index in unknown])  # [n, c]
            if self._graphs is None:
                found = self._blocks.think(self.residuals[slots], canonical=canonical)
            else:
                found = self._graphs.think(slots, canonical=canonical)
            for index, thought in zip(unknown, found, strict=True):
                thoughts[index] = thought
        known = [thought or () for thought in thoughts]
        self._write_states(chunks, known)
        by_span: list[list[ThoughtIds]] = [[] for _ in pass_.spans]
        for chunk, thought in zip(chunks, known, strict=True):
            by_span[chunk.span].append(thought)
        return tuple(map(tuple, by_span))

    def check(self, pass_: Pass, page_size: int) -> "ThoughtCheck":
        return ThoughtCheck(pass_, self, page_size)

    def copy_pages(self, source: Tensor, target: Tensor) -> None:
        """Copy whole pages; both are int64 [n]."""
        for tensor in (self.residuals, self.states, self.has_state):
            paged = tensor[:-1].view(-1, self._page_size, *tensor.shape[1:])
            paged[target] = paged[source]

    def _given_thought(self, chunk: _Chunk) -> ThoughtIds | None:
        """Return a thought that the request determines: trivial or forced. None: T writes it."""
        rule = chunk.thoughts.rule
        return rule.forced_on(chunk.number) if rule.thinks(chunk.number, self._config.chunk) else ()

    def _finished_chunks(self, pass_: Pass) -> list[_Chunk]:
        c, size = self._config.chunk, self._page_size

        def first_slot(span: Span, chunk: int) -> int:
            return -1 if chunk < 0 else span.pages[chunk * c // size] * size + chunk * c % size

        chunks = []
        for index, span in enumerate(pass_.spans):
            if not isinstance(span.extra, SpanThoughts):
                continue
            rule = span.extra.rule
            for number in range(rule.num_closed(span.start, c), rule.num_closed(span.stop, c)):
                length, slot = rule.end(number, c) - number * c, first_slot(span, number)
                chunks.append(_Chunk(index, number, slot, length, first_slot(span, number - 1), span.extra))
        return chunks

    def _write_states(self, chunks: Sequence[_Chunk], thoughts: Sequence[ThoughtIds]) -> None:
        """Run C on the thoughts after these chunks, and write the states."""
        if self._config.carry:
            chunks, thoughts = self._carry_states(chunks, thoughts)
        if not chunks:
            return
        slots = self._chunk_slots(chunks)
        has_state = np.array([bool(thought) for thought in thoughts])
        self.has_state[slots] = send_array(has_state, slots.device)[:, None]
        if has_state.any():
            where = send_array(np.flatnonzero(has_state), slots.device)
            self.states[slots[where]] = self._blocks.compress([thought for thought in thoughts if thought])

    def _carry_states(
        self, chunks: Sequence[_Chunk], thoughts: Sequence[ThoughtIds]
    ) -> tuple[list[_Chunk], list[ThoughtIds]]:
        """Carry states through the chunks of each span: the last thought that is not trivial replaces each
        trivial one. If there is none, the entries before the first chunk are copied. A reset ends both."""
        kept: list[tuple[_Chunk, ThoughtIds]] = []
        copied: list[tuple[int, int]] = []  # slots: from, to
        held: ThoughtIds = ()
        source = -1
        for index, (chunk, thought) in enumerate(zip(chunks, thoughts, strict=True)):
            if index == 0 or chunk.span != chunks[index - 1].span:
                held, source = (), chunk.slot_before
            if chunk.number in chunk.thoughts.rule.resets:
                held, source = (), -1
            held = thought or held
            if held or source < 0:
                kept.append((chunk, held))
            else:
                copied.append((source, chunk.first_slot))
        if copied:
            each = np.arange(self._config.chunk)
            pairs = np.array(copied, np.int64)[:, :, None] + each  # [n, 2, c]
            sources, targets = send_array(pairs.transpose(1, 0, 2).reshape(2, -1), self.residuals.device)
            for tensor in (self.states, self.has_state):
                tensor[targets] = tensor[sources]
        return [chunk for chunk, _ in kept], [thought for _, thought in kept]

    def _chunk_slots(self, chunks: Sequence[_Chunk]) -> Tensor:
        first = np.array([chunk.first_slot for chunk in chunks], np.int64)
        return send_array(first[:, None] + np.arange(self._config.chunk), self.residuals.device)

    def _read_slots(self, chunks: Sequence[_Chunk]) -> Tensor:
        """Return the slots that T reads: of the last c tokens when each chunk is closed."""
        first, before, length = np.array(
            [(chunk.first_slot, chunk.slot_before, chunk.length) for chunk in chunks], np.int64
        ).T[:, :, None]
        at = np.arange(self._config.chunk) + length - self._config.chunk  # in the chunk; negative: before it
        return send_array(np.where(at < 0, before + self._config.chunk, first) + at, self.residuals.device)

    def _find_state_slots(self, pass_: Pass, batch: InputBatch) -> Ints:
        """Return the slot whose state each token adds, -1 for none: int64 [padded tokens]."""
        lengths = np.diff(batch.span_starts)
        span_of = np.repeat(np.arange(len(lengths)), lengths)
        positions = batch.positions - self._config.chunk  # of the states
        if self._config.settle:
            positions = np.where(self._is_settled(pass_, batch, span_of), batch.positions, positions)
        pages = batch.page_table[span_of, np.maximum(positions, 0) // self._page_size].astype(np.int64)
        thinks = np.array([span.extra is not None for span in pass_.spans])[span_of]
        slots = pages * self._page_size + positions % self._page_size
        slots = np.where(thinks & (positions >= 0), slots, -1)
        return np.pad(slots, (0, pass_.num_tokens_padded - len(slots)), constant_values=-1)

    def _is_settled(self, pass_: Pass, batch: InputBatch, span_of: Ints) -> NDArray[np.bool_]:
        """Return which tokens are in a chunk that was closed before them."""
        settled = [
            span.extra.rule.settled if isinstance(span.extra, SpanThoughts) else None for span in pass_.spans
        ]
        since = np.array([_NEVER if at is None else at for at in settled])[span_of]
        same_chunk = batch.positions // self._config.chunk == since // self._config.chunk
        found: NDArray[np.bool_] = (batch.positions >= since) & same_chunk
        return found


class ThoughtCheck:
    """Compares T's inputs, the thoughts, and their states in a spot check. An `ExtensionCheck`."""

    def __init__(self, pass_: Pass, runner: ThoughtRunner, page_size: int) -> None:
        (span,) = pass_.spans
        self._pass, self._span, self._runner = pass_, span, runner
        num_shared = len(span.pages) - len(pass_.original_pages)
        pages = np.stack((np.array(span.pages[num_shared:]), np.array(pass_.original_pages)))  # [2, pages]
        c, device = runner.chunk, runner.residuals.device

        def slots(positions: Ints) -> Tensor:
            """Return the scratch slots and the original slots of these positions: [2, positions]."""
            numbers = pages[:, positions // page_size - num_shared] * page_size + positions % page_size
            return send_array(numbers, device)

        self._pages = send_array(pages, device)
        self._tokens = slots(np.arange(span.start, span.stop))
        rule = thoughts_of(span).rule
        first, last = rule.num_closed(span.start, c), rule.num_closed(span.stop, c)
        self._ends = [rule.end(chunk, c) for chunk in range(first, last)]  # of the chunks closed in the span
        self._chunks = slots(np.arange(first * c, last * c))

    def prepare(self) -> None:
        scratch, originals = self._pages
        self._runner.copy_pages(originals, scratch)
        bits_of(self._runner.residuals)[self._tokens[0]] ^= 1

    def compare(self, copies: HostCopies) -> Callable[[], str | None]:
        span, runner = self._span, self._runner
        (found,) = runner.finish(self._pass, canonical=True)
        again, first = bits_of(runner.residuals)[self._tokens].unbind()
        residuals = copies.add((again != first).any(1))  # bool [tokens]
        states = copies.add(self._states_differ())  # bool [chunks]

        def read() -> str | None:
            for index in np.flatnonzero(residuals.numpy())[:1].tolist():
                return f"the input of T at position {span.start + index}"
            guesses = guesses_of(span)
            expected = (*guesses, *found[len(guesses) :])  # the span has no guess after its last token
            for index, differs in enumerate(states.tolist()):
                if differs or found[index] != expected[index]:
                    return f"the thought after position {self._ends[index] - 1}"
            return None

        return read

    def _states_differ(self) -> Tensor:
        """A state is compared only where there is a thought."""
        again, first = bits_of(self._runner.states)[self._chunks].unbind()
        has_again, has_first = self._runner.has_state[self._chunks].unbind()
        differs = (has_again != has_first) | (has_first & (again != first).any(1))
        return differs.view(-1, self._runner.chunk).any(1)


def slot_bytes(hidden_size: int, dtype: DType) -> int:
    return 2 * hidden_size * dtype.itemsize + 1


def _zeros(shape: tuple[int, ...], dtype: DType, device: Device) -> Tensor:
    """Return zeros. On a CPU they take no memory until they are written."""
    if device.type == "cpu":
        return untouched_zeros(shape, dtype, device)
    return arrays_on(device).zeros(shape, dtype=dtype)
