"""Logprobs of known tokens. Sampled and given tokens are reported by this one function, so their bits are the same.

They are the log-softmax of the raw logits in fp32, before anything a request's settings do to them. The work is enqueued
first and read later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from holdfast.core.step_plan import TokenLogprob
from holdfast.numerics.ops import Backend
from holdfast.worker.transfer import HostCopies

Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Logprobs:
    """One token a row, with so many best beside it; on the host, once the returns have been waited for."""

    values: Tensor  # fp32 [rows]
    best_ids: Tensor | None  # int64 [rows, most]
    best_values: Tensor | None  # fp32 [rows, most]
    counts: Sequence[int]

    def read(self, token_ids: Sequence[int]) -> list[TokenLogprob]:
        """token_ids are those the logprobs were asked of."""
        values: list[float] = self.values.tolist()
        return list(map(TokenLogprob, token_ids, values, self._tops()))

    def _tops(self) -> Sequence[Top]:
        if self.best_ids is None or self.best_values is None:
            return ((),) * len(self.counts)
        return [
            tuple(zip(ids[:count], values[:count], strict=True))
            for ids, values, count in zip(
                self.best_ids.tolist(), self.best_values.tolist(), self.counts, strict=True
            )
        ]


def logprobs_of(
    backend: Backend, logits: Tensor, token_ids: Tensor, counts: Sequence[int], up: HostCopies
) -> Logprobs:
    """One token a row of the raw logits, fp32 [rows, vocab], each with so many best beside it."""
    totals = backend.logsumexp(logits)  # [rows]
    values = up.take(logits.gather(1, token_ids[:, None])[:, 0] - totals)
    most = min(max(counts), logits.shape[1])
    if not most:
        return Logprobs(values, None, None, counts)
    best, ids = backend.topk(logits, most)  # [rows, most]
    return Logprobs(values, up.take(ids), up.take(best - totals[:, None]), counts)
