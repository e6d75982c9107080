"""Logprobs of known tokens. Sampled and given tokens are reported by this one function, so their bits are the same.

They are the log-softmax of the raw logits in fp32, before anything a request's settings do to them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.arithmetic.ops import Arithmetic
from holdfast.core.plan import TokenLogprob


def logprobs_of(
    arithmetic: Arithmetic, logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprob]:
    """One token a row of the raw logits, fp32 [rows, vocab], each with so many best beside it."""
    totals = arithmetic.logsumexp(logits)  # [rows]
    chosen = torch.tensor(token_ids, dtype=torch.int64)
    values: list[float] = (logits.gather(1, chosen[:, None])[:, 0] - totals).tolist()
    most = max(counts)
    best = _best(arithmetic, logits, totals, most) if most else [()] * len(counts)
    return [
        TokenLogprob(token_id, value, top[:count])
        for token_id, value, top, count in zip(token_ids, values, best, counts, strict=True)
    ]


def _best(
    arithmetic: Arithmetic, logits: Tensor, totals: Tensor, k: int
) -> list[tuple[tuple[int, float], ...]]:
    values, ids = arithmetic.top(logits, min(k, logits.shape[1]))  # [rows, k]
    logprobs = (values - totals[:, None]).tolist()
    return [
        tuple(zip(row_ids, row, strict=True)) for row_ids, row in zip(ids.tolist(), logprobs, strict=True)
    ]
