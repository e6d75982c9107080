"""The greedy head graph: head and argmax of a pass as one CUDA graph.

    hidden [size, hidden]  ──  head  ──  greedy  ──  words  | ids int64 [size] | logprobs fp32 [size] |

A pass that decodes greedily costs the host two launches and one copy back. The graph is used if the
first tokens of the pass are the ones whose logits are needed, and only tokens and their own
logprobs are reported. Everything else goes through `sampler.py`, which gives the same bits. The
head runs at the graph's own batch size, which is certified.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from holdfast.core.step_plan import Sampled, Span, TokenLogprob
from holdfast.models.decoder import Decoder
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS
from holdfast.worker.cuda_graphs import Recorder, Work, gc_paused
from holdfast.worker.input_batch import InputBatch
from holdfast.worker.transfer import HostCopies

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GreedyTokens:
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
        if all(is_reported):
            return list(map(Sampled, ids, logprobs))
        return [
            Sampled(token_id, logprob if reported else None)
            for token_id, logprob, reported in zip(ids, logprobs, is_reported, strict=True)
        ]


class GreedyHeadGraph:
    """The graphs, by (batch size, canonical)."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._graphs: dict[tuple[int, bool], Work] = {}
        self._words = torch.empty(0)
        self._hidden = torch.empty(0)
        self._wanted: set[tuple[int, bool]] = set()  # to be captured when they are first used
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
        wanted = {(size, False) for size in sizes} | {(size, True) for size in canonical_sizes}
        wanted = {(size, canonical) for size, canonical in wanted if size <= MAX_HEAD_TOKENS}
        self._words = torch.zeros(2 * MAX_HEAD_TOKENS, dtype=torch.int64, device=hidden.device)
        self._graphs = {}
        if lazily:
            self._hidden, self._wanted, self._recorder = hidden, wanted, recorder
            return
        with gc_paused():
            for size, canonical in sorted(wanted, reverse=True):
                self._graphs[size, canonical] = recorder.record(self._work(hidden[:size], canonical))

    def capture_next(self) -> bool:
        """Capture one more graph that was not used yet. False: there is none."""
        return bool(self._wanted) and self._is_captured(*min(self._wanted))

    def _is_captured(self, size: int, canonical: bool) -> bool:
        """Whether there is a graph of this size, captured now if need be. Without memory for it the
        head runs without."""
        key = size, canonical
        if key in self._wanted and self._recorder is not None:
            self._wanted.discard(key)
            try:
                with gc_paused(collects=False):
                    self._graphs[key] = self._recorder.record(self._work(self._hidden[:size], canonical))
            except RuntimeError as error:  # out of memory, too
                _log.warning("no more graphs of the head are captured, and it runs slower: %s", error)
                self._wanted.clear()
        return key in self._graphs

    def fits(self, size: int, batch: InputBatch, spans: Sequence[Span], *, canonical: bool) -> bool:
        """Whether a pass that took the graph of this size can take the greedy head graph."""
        has_tokens = batch.logits_come_first and len(batch.logits_indices) > 0
        return has_tokens and all(map(_is_plain_greedy, spans)) and self._is_captured(size, canonical)

    def sample(
        self, size: int, num_tokens: int, spans: Sequence[Span], copies: HostCopies, *, canonical: bool
    ) -> GreedyTokens:
        """Sample the first num_tokens of the pass."""
        self._graphs[size, canonical]()
        ids, _ = _split_words(self._words, size)
        return GreedyTokens(ids[:num_tokens], copies.add(self._words[: _num_words(size)]), size, spans)

    def _work(self, hidden: Tensor, canonical: bool) -> Work:
        decoder = self._decoder
        ids, logprobs = _split_words(self._words, len(hidden))

        def work() -> None:
            found, values = decoder.backend.sample_greedy(decoder.logits(hidden, canonical=canonical))
            ids.copy_(found)
            logprobs.copy_(values)

        return work


def _is_plain_greedy(span: Span) -> bool:
    return (
        span.sampling.is_plain_greedy
        and not span.logprobs
        and not span.with_checksums
        and span.constraint is None
    )


def _num_words(size: int) -> int:
    return size + (size + 1) // 2


def _split_words(words: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Ids and logprobs, [size] each."""
    return words[:size], words[size : _num_words(size)].view(torch.float32)[:size]
