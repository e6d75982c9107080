"""The head of a pass: its last layer, where few tokens need it, and the head and the sampler as CUDA graphs.

**The last layer of a large pass runs only for the tokens whose logits are needed.** In every layer later
tokens read a token's keys and values. After the last layer only the head reads, and only the tokens whose
logits are needed: of a prompt chunk none, or its last. So a large pass ends before its last layer. Tokens
that are needed only as context write K and V there and skip the rest of the layer. The others become a
batch of their own, with one span per token:

    tokens of the pass    0 1 2 3 4 5 | 6 | 7 8 9     logits needed: 5, 6, 9
    tokens that continue            0   1       2     at their positions, with their own pages

Their number is not a certified batch size. If the pass is canonical, they are computed in canonical
form, which costs little for so few tokens.

**Head graphs** hold the head and the sampler of a pass that decodes:

    hidden [size, hidden]  ──  head  ──  argmax, or sample  ──  words  | ids int64 [size] | logprobs fp32 [size] |

Such a pass costs the host two launches and one copy back; with sampling settings also one copy to the
device. A graph is used if the first tokens of the pass are the ones whose logits are needed, no logits
are changed, and only tokens and their own logprobs are reported. Everything else goes through
`sampler.py`, which gives the same bits. The head runs at the graph's own batch size, which is certified.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.core.step_plan import NO_TOKEN, Sampled, Span, TokenLogprob
from holdfast.models.decoder import Decoder
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.attention_tiles import TILE_COLUMNS
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS
from holdfast.numerics.forward_batch import KVLayer
from holdfast.worker.cuda_graphs import Recorder, Work, gc_paused
from holdfast.worker.input_batch import DeviceBatch, InputBatch, Ints, send_batch
from holdfast.worker.logits import LogitsSlice, chosen_logprobs
from holdfast.worker.sampler import fill_settings, read_settings, settings_words
from holdfast.worker.transfer import HostCopies, staging_buffer

_log = logging.getLogger(__name__)
_MIN_RATIO = 4  # of the pass's tokens to the tokens that continue, padded to the reference's size
_WARM_UP_SIZES = (1, 512)  # attention has another kernel for few tokens than for many
_LISTED_SIZE = 8  # of passes whose kernels are listed


class LastLayer:
    """Which passes end before the last layer, and how they are completed."""

    def __init__(self, decoder: Decoder, layers: Sequence[KVLayer], *, needs_all_tokens: bool) -> None:
        """needs_all_tokens: the output of the last layer is read for all tokens."""
        self._decoder = decoder
        self._layers = layers
        # A recurrent layer computes all tokens in any case.
        self._needs_all_tokens = needs_all_tokens or decoder.layers[-1].mixer is not None
        self._reference_tokens = decoder.backend.recipe.rows

    def is_separate(self, num_tokens: int, num_logits: int = 1) -> bool:
        """Return whether a pass of this size with so many logits ends before the last layer."""
        num_slabs = -(-num_logits // self._reference_tokens)
        is_large = num_tokens >= _MIN_RATIO * self._reference_tokens * num_slabs
        return is_large and not self._needs_all_tokens

    def run(
        self,
        batch: InputBatch,
        sent: DeviceBatch,
        body: tuple[Tensor, Tensor],
        *,
        canonical: bool,
        exact: bool,
    ) -> Tensor:
        """Complete a pass from the output of `Decoder.forward_body`: [logits_indices, hidden].

        exact: the bits of this pass must be canonical. A graph is captured without knowing how many
        tokens need logits; if they are many, the last layer runs for all tokens.
        """
        residual, x = body
        if not len(batch.logits_indices):
            return x[:0]
        if not self.is_separate(len(x), len(batch.logits_indices)):
            hidden = self._decoder.forward_last_layer(
                residual, x, sent.forward, self._layers, canonical=canonical
            )
            return hidden[sent.logits_indices]
        few = send_batch(logits_batch(batch), len(batch.logits_indices), x.device).forward
        residual, x = residual[sent.logits_indices], x[sent.logits_indices]
        return self._decoder.forward_last_layer(residual, x, few, self._layers, canonical=exact)

    def warm_up(self) -> None:
        """Compile the kernels, for few and for many tokens, in both forms. Nothing is written."""
        if self._needs_all_tokens:
            return
        backend, width = self._decoder.backend, self._decoder.config.hidden_size
        for count in _WARM_UP_SIZES:
            zeros = np.zeros(count, np.int64)
            batch = _one_token_spans(zeros, zeros - 1, np.zeros((count, 1), np.int32), tiled=True)
            forward = send_batch(batch, count, backend.device).forward
            for canonical in (False, True):
                residual, x = (
                    arrays_on(backend.device).zeros(count, width, dtype=self._decoder.dtype) for _ in range(2)
                )
                self._decoder.forward_last_layer(residual, x, forward, self._layers, canonical=canonical)


def logits_batch(batch: InputBatch) -> InputBatch:
    """Return the tokens that need logits as a batch, one span each."""
    indices = batch.logits_indices
    span_of = np.searchsorted(batch.span_starts, indices, side="right") - 1
    return _one_token_spans(
        batch.positions[indices],
        batch.slots[indices],
        batch.page_table[span_of],
        tiled=len(batch.tiles) > 0,
    )


def _one_token_spans(
    positions: Ints, slots: Ints, page_table: NDArray[np.int32], *, tiled: bool
) -> InputBatch:
    """Make spans of one token each, in tiles of one token."""
    count, width = page_table.shape
    each = np.arange(count)
    tiles = np.zeros((count, TILE_COLUMNS), np.int32)
    tiles[:, :3] = np.stack((each, np.ones_like(each), each * width), 1)
    return InputBatch(
        token_ids=np.zeros(count, np.int64),
        positions=positions,
        slots=slots,
        tiles=tiles if tiled else tiles[:0],
        page_table=page_table,
        span_starts=np.arange(count + 1, dtype=np.int32),
        num_short_tiles=count if tiled else 0,
    )


@dataclass(frozen=True)
class HeadTokens:
    """As `SampledTokens`."""

    token_ids: Tensor  # int64 [tokens], on the device until the next replay
    _words: Tensor  # on the host
    _size: int
    _spans: Sequence[Span]

    def read(self) -> list[Sampled]:
        parts = _split_words(self._words, self._size)
        ids, values = (part[: len(self.token_ids)].tolist() for part in parts)
        is_reported = [span.logprobs is not None for span in self._spans for _ in range(span.num_sampled)]
        if not any(is_reported):
            return list(map(Sampled, ids))
        logprobs = list(map(TokenLogprob, ids, values, repeat(())))
        if all(is_reported) and NO_TOKEN not in ids:
            return list(map(Sampled, ids, logprobs))
        return [
            Sampled(token_id, logprob if reported and token_id != NO_TOKEN else None)
            for token_id, logprob, reported in zip(ids, logprobs, is_reported, strict=True)
        ]


class _Key(NamedTuple):
    """Which graph. In the order in which graphs are captured while nothing else is to do."""

    is_sampled: bool  # some token has a temperature
    size: int
    canonical: bool


class HeadGraphs:
    """The graphs, by batch size and form."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._graphs: dict[_Key, Work] = {}
        self._words = self._settings = self._hidden = arrays_on(decoder.backend.device).empty(0)
        self._wanted: set[_Key] = set()  # to be captured when they are first used
        self._recorder: Recorder | None = None

    def capture(
        self,
        hidden: Tensor,
        sizes: Sequence[int],
        canonical_sizes: Sequence[int],
        recorder: Recorder,
        *,
        lazily: bool = False,
    ) -> None:
        """Capture graphs for passes of these sizes, whose output is in hidden [max tokens, hidden]. Drop
        those captured before. lazily: each when it is first used."""
        passes = {(size, False) for size in sizes} | {(size, True) for size in canonical_sizes}
        wanted = {
            _Key(is_sampled, size, canonical)
            for size, canonical in passes
            for is_sampled in (False, True)
            if size <= MAX_HEAD_TOKENS
        }
        xp = arrays_on(hidden.device)
        self._words = xp.zeros(2 * MAX_HEAD_TOKENS, dtype=xp.int64)
        self._settings = xp.zeros(settings_words(MAX_HEAD_TOKENS), dtype=xp.int64)
        self._hidden, self._graphs = hidden, {}
        if lazily:
            self._wanted, self._recorder = wanted, recorder
            return
        with gc_paused():
            for key in sorted(wanted, key=lambda one: -one.size):
                self._record(key, recorder)

    def capture_next(self) -> bool:
        """Capture one more graph that was not used yet. Return False if there is none."""
        return bool(self._wanted) and self._is_captured(min(self._wanted))

    def list_kernels(self) -> set[str]:
        """Return the kernels of the head and the sampler."""
        if self._recorder is None:
            return set()
        known = self._wanted | self._graphs.keys()
        keys = [key for key in known if key.size == _LISTED_SIZE and not key.canonical]
        with gc_paused(collects=False):
            return set().union(*(self._recorder.kernels(self._work(key)) for key in keys))

    def release(self) -> None:
        """Drop all graphs. The head runs without them from now on."""
        self._graphs, self._recorder = {}, None
        self._wanted.clear()

    def _is_captured(self, key: _Key) -> bool:
        """Return whether there is this graph. Capture it if it is wanted. Without memory, do without."""
        if key in self._wanted and self._recorder is not None:
            self._wanted.discard(key)
            try:
                with gc_paused(collects=False):
                    self._record(key, self._recorder)
            except RuntimeError as error:  # out of memory, too
                _log.warning("no more graphs of the head are captured, and it runs slower: %s", error)
                self._wanted.clear()
        return key in self._graphs

    def _record(self, key: _Key, recorder: Recorder) -> None:
        # Every row is greedy. What the last pass left has the layout of another size: its seeds would be
        # read as temperatures and probabilities.
        self._settings.zero_()
        self._graphs[key] = recorder.record(self._work(key))

    def fits(self, size: int, batch: InputBatch, spans: Sequence[Span], *, canonical: bool) -> bool:
        """Return whether a pass that took the graph of this size can take a head graph."""
        has_tokens = batch.logits_come_first and len(batch.logits_indices) > 0
        if not has_tokens or not all(map(_is_plain, spans)):
            return False
        return self._is_captured(_Key(_is_sampled(spans), size, canonical))

    def sample(
        self, size: int, num_tokens: int, spans: Sequence[Span], copies: HostCopies, *, canonical: bool
    ) -> HeadTokens:
        """Sample the first num_tokens of the pass."""
        key = _Key(_is_sampled(spans), size, canonical)
        if key.is_sampled:
            slices = [LogitsSlice(span, span.sample_from, len(span.token_ids)) for span in spans]
            host = staging_buffer(settings_words(size), self._settings.device)
            fill_settings(host.numpy(), slices, size)
            self._settings[: len(host)].copy_(host, non_blocking=True)
        self._graphs[key]()
        ids, _ = _split_words(self._words, size)
        return HeadTokens(ids[:num_tokens], copies.add(self._words[: _num_words(size)]), size, spans)

    def _work(self, key: _Key) -> Work:
        decoder, backend = self._decoder, self._decoder.backend
        hidden = self._hidden[: key.size]
        settings = read_settings(self._settings[: settings_words(key.size)], key.size)
        ids, logprobs = _split_words(self._words, key.size)

        def greedy() -> None:
            found, values = backend.sample_greedy(decoder.logits(hidden, canonical=key.canonical))
            ids.copy_(found)
            logprobs.copy_(values)

        def sampled() -> None:
            logits = decoder.logits(hidden, canonical=key.canonical)
            ids.copy_(backend.sample(logits, settings))
            chosen_logprobs(backend, logits, ids, out=logprobs)

        return sampled if key.is_sampled else greedy


def _is_plain(span: Span) -> bool:
    return (
        not span.sampling.changes_logits
        and not span.logprobs
        and not span.sampling.params.named_ids
        and not span.with_checksums
        and span.constraint is None
    )


def _is_sampled(spans: Sequence[Span]) -> bool:
    return any(span.sampling.params.temperature != 0 for span in spans)


def _num_words(size: int) -> int:
    return size + (size + 1) // 2


def _split_words(words: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return ids and logprobs, [size] each."""
    return words[:size], words[size : _num_words(size)].view(arrays_on(words.device).float32)[:size]
