"""From logits to tokens and logprobs, row by row.

A row's token depends on its logits, its request's settings, and (seed, position): there is no state to roll back, so
a fast row, a window row and a prefill row are the same thing here. Reported logprobs are of the raw logits, before
temperature, masks and truncation, and asking for them changes no token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.arithmetic.choice import ChoiceBatch
from holdfast.arithmetic.ops import Arithmetic
from holdfast.core.plan import Sampled, Span, TokenLogprob

_SIGN = 1 << 63


def sample(arithmetic: Arithmetic, logits: Tensor, spans: Sequence[Span]) -> tuple[tuple[Sampled, ...], ...]:
    """The sampled rows of each span. logits are fp32 [sampled rows, vocab], in span order."""
    batch, masked = _settings(spans)
    allowed = _mask(logits, masked) if masked else logits
    token_ids: list[int] = arithmetic.choose(allowed, batch).tolist()
    logprobs = _logprobs(arithmetic, logits, token_ids, spans)
    out, at = [], 0
    for span in spans:
        stop = at + span.num_sampled
        out.append(tuple(Sampled(token_ids[row], logprobs.get(row)) for row in range(at, stop)))
        at = stop
    return tuple(out)


def _settings(spans: Sequence[Span]) -> tuple[ChoiceBatch, list[tuple[int, tuple[int, ...]]]]:
    """Per row: temperature, top-k, top-p, min-p, seed, position of the token; and which rows may not say what."""
    temperature: list[float] = []
    top_k: list[int] = []
    top_p: list[float] = []
    min_p: list[float] = []
    seeds: list[int] = []
    positions: list[int] = []
    masked: list[tuple[int, tuple[int, ...]]] = []
    for span in spans:
        count, how = span.num_sampled, span.sampling
        first = span.start + span.sample_from + 1  # where the first sampled token will stand
        if how.forbidden_ids:
            shortest = how.prompt_len + how.params.min_tokens
            rows = range(min(count, max(0, shortest - first)))
            masked.extend((len(positions) + row, how.forbidden_ids) for row in rows)
        temperature.extend([how.params.temperature] * count)
        top_k.extend([how.params.top_k] * count)
        top_p.extend([how.params.top_p] * count)
        min_p.extend([how.params.min_p] * count)
        seeds.extend([how.seed - 2 * _SIGN if how.seed >= _SIGN else how.seed] * count)
        positions.extend(range(first, first + count))
    batch = ChoiceBatch(
        temperature=torch.tensor(temperature, dtype=torch.float32),
        top_k=torch.tensor(top_k, dtype=torch.int32),
        top_p=torch.tensor(top_p, dtype=torch.float32),
        min_p=torch.tensor(min_p, dtype=torch.float32),
        seeds=torch.tensor(seeds, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
    )
    return batch, masked


def _mask(logits: Tensor, masked: Sequence[tuple[int, tuple[int, ...]]]) -> Tensor:
    """A copy in which forbidden tokens cannot be chosen; the raw logits stay as they are for the logprobs."""
    allowed = logits.clone()
    for row, token_ids in masked:
        allowed[row, list(token_ids)] = -torch.inf
    return allowed


def _logprobs(
    arithmetic: Arithmetic, logits: Tensor, token_ids: Sequence[int], spans: Sequence[Span]
) -> dict[int, TokenLogprob]:
    """The chosen and the best logprobs of the rows whose span asked for them."""
    wanted: list[tuple[int, int]] = []  # (row, how many best)
    at = 0
    for span in spans:
        if span.logprobs is not None:
            wanted.extend((row, span.logprobs) for row in range(at, at + span.num_sampled))
        at += span.num_sampled
    if not wanted:
        return {}
    rows = torch.tensor([row for row, _ in wanted])
    chosen = torch.tensor([token_ids[row] for row, _ in wanted])
    some = logits[rows]  # [wanted, vocab]
    totals = arithmetic.logsumexp(some)  # [wanted]
    values: list[float] = (some.gather(1, chosen[:, None])[:, 0] - totals).tolist()
    most = max(count for _, count in wanted)
    best = _best(arithmetic, some, totals, most) if most else [()] * len(wanted)
    return {
        row: TokenLogprob(token_ids[row], values[index], best[index][:count])
        for index, (row, count) in enumerate(wanted)
    }


def _best(
    arithmetic: Arithmetic, logits: Tensor, totals: Tensor, k: int
) -> list[tuple[tuple[int, float], ...]]:
    values, ids = arithmetic.top(logits, min(k, logits.shape[1]))  # [rows, k]
    logprobs = (values - totals[:, None]).tolist()
    return [
        tuple(zip(row_ids, row, strict=True)) for row_ids, row in zip(ids.tolist(), logprobs, strict=True)
    ]
