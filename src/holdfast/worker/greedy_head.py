"""How most captured passes go on, as a graph of its own: the head over the rows a pass left, and the best token of each.

    hidden [size, hidden]  ──  head  ──  greedy  ──  words  | ids int64 [size] | logprobs fp32 [size] |

So a pass that decodes greedily costs the host two launches and one copy back. Taken where the first rows are the wanted ones
and nothing is asked of them but their tokens and those tokens' logprobs; everything else is for `sampler.py`, whose bits
these are. The head runs at the graph's own number of rows, which the certificate knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from holdfast.core.step_plan import Sampled, Span, TokenLogprob
from holdfast.models.decoder import Decoder
from holdfast.numerics.batch_sizes import MAX_HEAD_TOKENS
from holdfast.worker.cuda_graphs import Recorder, Work, no_collection
from holdfast.worker.input_batch import InputBatch
from holdfast.worker.transfer import HostCopies


@dataclass(frozen=True)
class GreedyChoices:
    """As the sampler's `Choices`: tokens on the device at once, and all that is asked for when the returns have come."""

    token_ids: Tensor  # int64 [rows], on the device until the next replay
    _words: Tensor  # on the host
    _size: int
    _spans: Sequence[Span]

    def read(self) -> list[Sampled]:
        places = _places(self._words, self._size)
        ids, values = (place[: len(self.token_ids)].tolist() for place in places)
        reports = [span.logprobs is not None for span in self._spans for _ in range(span.num_sampled)]
        if not any(reports):
            return list(map(Sampled, ids))
        logprobs = list(map(TokenLogprob, ids, values, repeat(())))
        if all(reports):
            return list(map(Sampled, ids, logprobs))
        return [
            Sampled(token_id, logprob if reported else None)
            for token_id, logprob, reported in zip(ids, logprobs, reports, strict=True)
        ]


class GreedyHeadGraph:
    """The graphs, by (rows, canonical)."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._graphs: dict[tuple[int, bool], Work] = {}
        self._words = torch.empty(0)

    def capture(
        self, hidden: Tensor, sizes: Sequence[int], canonical_sizes: Sequence[int], recorder: Recorder
    ) -> None:
        """For passes of so many rows that leave them in hidden [most rows, hidden]; those captured before are given up."""
        wanted = {(size, False) for size in sizes} | {(size, True) for size in canonical_sizes}
        wanted = {(size, canonical) for size, canonical in wanted if size <= MAX_HEAD_TOKENS}
        self._words = torch.zeros(2 * MAX_HEAD_TOKENS, dtype=torch.int64, device=hidden.device)
        self._graphs = {}
        with no_collection():
            for size, canonical in sorted(wanted, reverse=True):
                self._graphs[size, canonical] = recorder.record(self._work(hidden[:size], canonical))

    def fits(self, size: int, batch: InputBatch, spans: Sequence[Span], *, canonical: bool) -> bool:
        """Whether what a captured pass of so many rows left goes on here."""
        captured = (size, canonical) in self._graphs
        return captured and batch.wants_first_rows and len(batch.wanted) > 0 and all(map(_is_plain, spans))

    def choose(
        self, size: int, num_rows: int, spans: Sequence[Span], up: HostCopies, *, canonical: bool
    ) -> GreedyChoices:
        """The first so many rows."""
        self._graphs[size, canonical]()
        ids, _ = _places(self._words, size)
        return GreedyChoices(ids[:num_rows], up.take(self._words[: _num_words(size)]), size, spans)

    def _work(self, hidden: Tensor, canonical: bool) -> Work:
        decoder = self._decoder
        ids, logprobs = _places(self._words, len(hidden))

        def work() -> None:
            best, values = decoder.backend.sample_greedy(decoder.logits(hidden, canonical=canonical))
            ids.copy_(best)
            logprobs.copy_(values)

        return work


def _is_plain(span: Span) -> bool:
    return (
        span.sampling.is_plain_greedy
        and not span.logprobs
        and not span.with_checksums
        and span.constraint is None
    )


def _num_words(size: int) -> int:
    return size + (size + 1) // 2


def _places(words: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where ids and logprobs stand, [size] each."""
    return words[:size], words[size : _num_words(size)].view(torch.float32)[:size]
