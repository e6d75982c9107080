"""The logits of sampled tokens, in batches of limited size, and logprobs.

The size limits the memory of the logits. A batch may split a span: a sampled token does not depend on the
tokens computed with it.

Logprobs of sampled and of scored tokens are computed by one function, so that their bits are the same. A
logprob is the log-softmax of the raw logits in fp32, before any logits processor. The work is enqueued
first and read later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from holdfast.core.step_plan import Span, TokenLogprob
from holdfast.numerics.arrays import Device, Tensor
from holdfast.numerics.ops import Backend
from holdfast.worker.transfer import HostCopies, send_array

TopLogprobs = tuple[tuple[int, float], ...]
Masks = tuple[bytes | None, ...]  # grammar masks of some tokens, as in `Grammar.masks`


def max_logits_tokens(device: Device) -> int:
    """Return how many tokens have logits at once: many on a GPU, to be worth the kernel launches; few on
    a CPU, to save memory."""
    return 512 if device.type == "cuda" else 64


class LogitsSlice(NamedTuple):
    """Tokens first .. stop - 1 of a span, all sampled. masks: one for each token if the span has a
    grammar, else empty."""

    span: Span
    first: int
    stop: int
    masks: Masks = ()

    @property
    def num_tokens(self) -> int:
        return self.stop - self.first

    @property
    def first_position(self) -> int:
        """The position of the first token that is sampled here: how many tokens precede it."""
        return self.span.start + self.first + 1


PlacedSlices = Sequence[tuple[int, LogitsSlice]]  # slices, each with its first row in the logits


def batch_slices(
    spans: Sequence[Span], masks: Sequence[Masks], max_tokens: int
) -> Iterator[list[LogitsSlice]]:
    """Yield the sampled tokens in batches of at most `max_tokens`, in span order. masks: by span."""
    batch: list[LogitsSlice] = []
    room = max_tokens
    for span, span_masks in zip(spans, masks, strict=True):
        first, num_tokens = span.sample_from, len(span.token_ids)
        while first < num_tokens:
            stop = min(num_tokens, first + room)
            at = first - span.sample_from
            batch.append(LogitsSlice(span, first, stop, span_masks and span_masks[at : at + stop - first]))
            room -= stop - first
            first = stop
            if room == 0:
                yield batch
                batch, room = [], max_tokens
    if batch:
        yield batch


@dataclass(frozen=True)
class Logprobs:
    """The logprobs of n tokens and of the top alternatives to each, or of named ones. Host tensors, to be
    read after `HostCopies.wait`."""

    values: Tensor  # fp32 [n]
    top_ids: Tensor | None  # int64 [n, most]
    top_values: Tensor | None  # fp32 [n, most]
    counts: Sequence[int]  # how many alternatives each token reports
    named: Sequence[Sequence[int]] = ()  # which each token reports instead, if any are named
    named_values: Tensor | None = None  # fp32 [n, most]

    def read(self, token_ids: Sequence[int]) -> list[TokenLogprob]:
        """Return the logprobs. token_ids: those that `gather_logprobs` was called with."""
        values: list[float] = self.values.tolist()
        tops = self._tops()
        if self.named_values is not None:
            own = zip(token_ids, values, strict=True)
            tops = [
                _most_likely_first([one, *zip(names, its_values, strict=False)]) if names else top
                for one, names, its_values, top in zip(
                    own, self.named, self.named_values.tolist(), tops, strict=True
                )
            ]
        return list(map(TokenLogprob, token_ids, values, tops))

    def _tops(self) -> Sequence[TopLogprobs]:
        if self.top_ids is None or self.top_values is None:
            return ((),) * len(self.counts)
        return [
            tuple(zip(ids[:count], values[:count], strict=True))
            for ids, values, count in zip(
                self.top_ids.tolist(), self.top_values.tolist(), self.counts, strict=True
            )
        ]


def _most_likely_first(pairs: Sequence[tuple[int, float]]) -> TopLogprobs:
    return tuple(sorted(dict(pairs).items(), key=lambda pair: (-pair[1], pair[0])))


def gather_logprobs(
    backend: Backend,
    logits: Tensor,
    token_ids: Tensor,
    counts: Sequence[int],
    copies: HostCopies,
    named: Sequence[Sequence[int]] = (),
) -> Logprobs:
    """Compute the logprob of one token in each row of the raw logits, fp32 [n, vocab], and the top ones.
    The logprob of NO_TOKEN means nothing.

    counts: how many top ones, by row. named: the tokens of each row whose logprobs are wanted, too.
    """
    norms = backend.logsumexp(logits)  # [n]
    found = Logprobs(copies.add(_of(logits, token_ids) - norms), None, None, counts)
    most = min(max(counts), logits.shape[1])
    if most:
        top, ids = backend.topk(logits, most)  # [n, most]
        found = replace(found, top_ids=copies.add(ids), top_values=copies.add(top - norms[:, None]))
    if any(named):
        values = logits.gather(1, _table(named, logits.device)) - norms[:, None]
        found = replace(found, named=named, named_values=copies.add(values))
    return found


def _table(named: Sequence[Sequence[int]], device: Device) -> Tensor:
    """Return the tokens of each row, int64 [n, most], filled up with token 0."""
    table = np.zeros((len(named), max(map(len, named))), np.int64)
    for row, ids in zip(table, named, strict=True):
        row[: len(ids)] = ids
    return send_array(table, device)


def chosen_logprobs(backend: Backend, logits: Tensor, token_ids: Tensor, out: Tensor) -> None:
    """Write the logprob of one token in each row alone to out, fp32 [n]."""
    out.copy_(_of(logits, token_ids) - backend.logsumexp(logits))


def _of(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return the logits of one token in each row; of token 0 for NO_TOKEN."""
    return logits.gather(1, token_ids.clamp(min=0)[:, None])[:, 0]
