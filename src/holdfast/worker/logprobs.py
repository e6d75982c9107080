"""Logprobs of sampled and scored tokens, by one function, so that their bits are the same.

A logprob is the log-softmax of the raw logits in fp32, before any logits processor. The work is
enqueued first and read later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.step_plan import TokenLogprob
from holdfast.numerics.ops import Backend
from holdfast.worker.transfer import HostCopies

TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Logprobs:
    """The logprobs of n tokens and of the top alternatives to each. Host tensors, to be read
    after `HostCopies.wait`."""

    values: Tensor  # fp32 [n]
    top_ids: Tensor | None  # int64 [n, most]
    top_values: Tensor | None  # fp32 [n, most]
    counts: Sequence[int]  # how many alternatives each token reports

    def read(self, token_ids: Sequence[int]) -> list[TokenLogprob]:
        """token_ids: the tokens that `gather_logprobs` was called with."""
        values: list[float] = self.values.tolist()
        return list(map(TokenLogprob, token_ids, values, self._tops()))

    def _tops(self) -> Sequence[TopLogprobs]:
        if self.top_ids is None or self.top_values is None:
            return ((),) * len(self.counts)
        return [
            tuple(zip(ids[:count], values[:count], strict=True))
            for ids, values, count in zip(
                self.top_ids.tolist(), self.top_values.tolist(), self.counts, strict=True
            )
        ]


def gather_logprobs(
    backend: Backend, logits: Tensor, token_ids: Tensor, counts: Sequence[int], copies: HostCopies
) -> Logprobs:
    """The logprob of one token in each row of the raw logits, fp32 [n, vocab], and the top ones. That
    of NO_TOKEN means nothing."""
    norms = backend.logsumexp(logits)  # [n]
    values = copies.add(_of(logits, token_ids) - norms)
    most = min(max(counts), logits.shape[1])
    if not most:
        return Logprobs(values, None, None, counts)
    top, ids = backend.topk(logits, most)  # [n, most]
    return Logprobs(values, copies.add(ids), copies.add(top - norms[:, None]), counts)


def chosen_logprobs(backend: Backend, logits: Tensor, token_ids: Tensor, out: Tensor) -> None:
    """Write the logprob of one token in each row alone to out, fp32 [n]."""
    torch.sub(_of(logits, token_ids), backend.logsumexp(logits), out=out)


def _of(logits: Tensor, token_ids: Tensor) -> Tensor:
    """The logits of one token in each row; that of token 0 for NO_TOKEN."""
    return logits.gather(1, token_ids.clamp(min=0)[:, None])[:, 0]
