"""From logits to tokens and what is reported of them, row by row.

A row's token depends on its logits, its request's settings, (seed, position) and its own tokens before it: there is no
state to roll back, so a fast row, a window row and a prefill row are the same thing here. What is reported is of the
raw logits, before anything the settings do to them, and asking for it changes no token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.arithmetic.choice import ChoiceBatch
from holdfast.arithmetic.ops import Arithmetic
from holdfast.core.plan import NO_TOKEN, Sampled
from holdfast.run.adjust import adjust, is_adjusted
from holdfast.run.checksum import checksums
from holdfast.run.logprobs import logprobs_of
from holdfast.run.parts import Part

_SIGN = 1 << 63


def sample(arithmetic: Arithmetic, logits: Tensor, parts: Sequence[Part]) -> list[Sampled]:
    """One `Sampled` a row. logits are fp32 [rows of the parts, vocab], and the sampler's to change."""
    reported, watched = _asked(parts)
    changes = any(is_adjusted(part) for part in parts)
    bits = dict(zip(watched, checksums(_rows(logits, watched)), strict=True)) if watched else {}
    raw = _rows(logits, [row for row, _ in reported], copy=changes) if reported else None  # [reported, vocab]
    cut = adjust(logits, parts) if changes else []
    token_ids: list[int] = arithmetic.choose(logits, _settings(parts)).tolist()
    for row in _without_choice(logits, cut, token_ids):
        token_ids[row] = NO_TOKEN
    if raw is None:
        return [Sampled(token_id, None, bits.get(row)) for row, token_id in enumerate(token_ids)]
    chosen = [max(0, token_ids[row]) for row, _ in reported]  # NO_TOKEN has no logprob; any will do
    found = logprobs_of(arithmetic, raw, chosen, [count for _, count in reported])
    logprobs = {row: logprob for (row, _), logprob in zip(reported, found, strict=True)}
    return [
        Sampled(token_id, None if token_id == NO_TOKEN else logprobs.get(row), bits.get(row))
        for row, token_id in enumerate(token_ids)
    ]


def _asked(parts: Sequence[Part]) -> tuple[list[tuple[int, int]], list[int]]:
    """The rows whose logprobs are reported, with how many best; and the rows whose bits are."""
    reported: list[tuple[int, int]] = []
    watched: list[int] = []
    at = 0
    for part in parts:
        span, rows = part.span, range(at, at + part.num_rows)
        if span.logprobs is not None:
            reported.extend((row, span.logprobs) for row in rows)
        if span.watched:
            watched.extend(rows)
        at = rows.stop
    return reported, watched


def _rows(logits: Tensor, rows: list[int], *, copy: bool = False) -> Tensor:
    """Some rows; all of them are the logits themselves, unless a copy must be kept."""
    return logits if len(rows) == len(logits) and not copy else logits[rows]


def _without_choice(logits: Tensor, cut: list[int], token_ids: Sequence[int]) -> list[int]:
    """The rows of which everything was left out: even the best of them is."""
    if not cut:
        return []
    best = logits[cut, [token_ids[row] for row in cut]]
    return [row for row, is_left in zip(cut, (best > -torch.inf).tolist(), strict=True) if not is_left]


def _settings(parts: Sequence[Part]) -> ChoiceBatch:
    """Per row: temperature, top-k, top-p, min-p, seed, position of the token."""
    temperature: list[float] = []
    top_k: list[int] = []
    top_p: list[float] = []
    min_p: list[float] = []
    seeds: list[int] = []
    positions: list[int] = []
    for part in parts:
        count, how, first = part.num_rows, part.span.sampling, part.first_end
        temperature.extend([how.params.temperature] * count)
        top_k.extend([how.params.top_k] * count)
        top_p.extend([how.params.top_p] * count)
        min_p.extend([how.params.min_p] * count)
        seeds.extend([how.seed - 2 * _SIGN if how.seed >= _SIGN else how.seed] * count)
        positions.extend(range(first, first + count))
    arrays = (  # through numpy, which reads lists faster than torch does
        *(np.array(temperature, np.float32), np.array(top_k, np.int32), np.array(top_p, np.float32)),
        *(np.array(min_p, np.float32), np.array(seeds, np.int64), np.array(positions, np.int64)),
    )
    return ChoiceBatch(*map(torch.from_numpy, arrays))
