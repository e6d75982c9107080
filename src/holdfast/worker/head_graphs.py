"""Head graphs: the head and the sampler of a pass as one CUDA graph.

    hidden [size, hidden]  ──  head  ──  argmax, or sample  ──  words  | ids int64 [size] | logprobs fp32 [size] |

A pass that decodes costs the host two launches and one copy back; with sampling settings also one
copy to the device. A graph is used if the first tokens of the pass are the ones whose logits are
needed, no logits are changed, and only tokens and their own logprobs are reported. Everything else
goes through `sampler.py`, which gives the same bits. The head runs at the graph's own batch size,
which is certified.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.core.step_plan import NO_TOKEN, Sampled, Span, TokenLogprob
from holdfast.models.decoder import Decoder
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS
from holdfast.worker.cuda_graphs import Recorder, Work, gc_paused
from holdfast.worker.input_batch import InputBatch
from holdfast.worker.logits_slices import LogitsSlice
from holdfast.worker.logprobs import chosen_logprobs
from holdfast.worker.sampler import fill_settings, read_settings, settings_words
from holdfast.worker.transfer import HostCopies, staging_buffer

_log = logging.getLogger(__name__)
_LISTED_SIZE = 8  # of passes whose kernels are listed


@dataclass(frozen=True)
class HeadTokens:
    """As `SampledTokens`: on the device at once, on the host after `HostCopies.wait`."""

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
        self._words = self._settings = self._hidden = torch.empty(0)
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
        """Capture graphs for passes of these sizes, whose output is in hidden [max tokens,
        hidden]. Graphs captured before are dropped. lazily: each when it is first used."""
        passes = {(size, False) for size in sizes} | {(size, True) for size in canonical_sizes}
        wanted = {
            _Key(is_sampled, size, canonical)
            for size, canonical in passes
            for is_sampled in (False, True)
            if size <= MAX_HEAD_TOKENS
        }
        self._words = torch.zeros(2 * MAX_HEAD_TOKENS, dtype=torch.int64, device=hidden.device)
        self._settings = torch.zeros(settings_words(MAX_HEAD_TOKENS), dtype=torch.int64, device=hidden.device)
        self._hidden, self._graphs = hidden, {}
        if lazily:
            self._wanted, self._recorder = wanted, recorder
            return
        with gc_paused():
            for key in sorted(wanted, key=lambda one: -one.size):
                self._record(key, recorder)

    def capture_next(self) -> bool:
        """Capture one more graph that was not used yet. False: there is none."""
        return bool(self._wanted) and self._is_captured(min(self._wanted))

    def list_kernels(self) -> set[str]:
        """The kernels of the head and the sampler."""
        if self._recorder is None:
            return set()
        keys = [
            key
            for key in self._wanted | self._graphs.keys()
            if key.size == _LISTED_SIZE and not key.canonical
        ]
        with gc_paused(collects=False):
            return set().union(*(self._recorder.kernels(self._work(key)) for key in keys))

    def release(self) -> None:
        """Drop all graphs. The head runs without them from now on."""
        self._graphs, self._recorder = {}, None
        self._wanted.clear()

    def _is_captured(self, key: _Key) -> bool:
        """Whether there is this graph, captured now if need be. Without memory for it the head runs
        without."""
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
        """Every row is greedy while a graph is captured. What the last pass left in the buffer has the
        layout of another size: its seeds would be read as temperatures and probabilities."""
        self._settings.zero_()
        self._graphs[key] = recorder.record(self._work(key))

    def fits(self, size: int, batch: InputBatch, spans: Sequence[Span], *, canonical: bool) -> bool:
        """Whether a pass that took the graph of this size can take a head graph."""
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
        and not span.with_checksums
        and span.constraint is None
    )


def _is_sampled(spans: Sequence[Span]) -> bool:
    return any(span.sampling.params.temperature != 0 for span in spans)


def _num_words(size: int) -> int:
    return size + (size + 1) // 2


def _split_words(words: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Ids and logprobs, [size] each."""
    return words[:size], words[size : _num_words(size)].view(torch.float32)[:size]
