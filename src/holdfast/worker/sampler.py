"""From logits to tokens and what is reported of them, row by row. The work is enqueued first and read later.

A row's token depends on its logits, its request's settings, (seed, position) and its own tokens before it: there is no
state to roll back, so a fast row, a window row and a prefill row are the same thing here. What is reported is of the
raw logits, before anything the settings do to them, and asking for it changes no token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.core.step_plan import NO_TOKEN, Sampled
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import SamplingBatch
from holdfast.worker.checksum import checksums
from holdfast.worker.logits_processors.pipeline import adjust, is_adjusted
from holdfast.worker.logits_slices import LogitsSlice
from holdfast.worker.logprobs import Logprobs, logprobs_of
from holdfast.worker.transfer import HostCopies, aligned, send, send_array, staging

_SIGN = 1 << 63


@dataclass(frozen=True)
class _Asked:
    """The rows whose logprobs are reported, with how many best each; and the rows whose bits are."""

    reported: list[int]
    counts: list[int]
    watched: list[int]


@dataclass(frozen=True)
class Choices:
    """What the rows of a slice gave: on the device at once, and to be read when the returns have been waited for."""

    token_ids: Tensor  # int64 [rows], on the device
    _ids: Tensor  # the same on the host
    _asked: _Asked
    _logprobs: Logprobs | None
    _bits: Tensor | None  # int64 [watched]

    def read(self) -> list[Sampled]:
        ids: list[int] = self._ids.tolist()
        if self._bits is None:
            if self._logprobs is None:
                return list(map(Sampled, ids))
            if len(self._asked.reported) == len(ids) and NO_TOKEN not in ids:  # nearly always
                return list(map(Sampled, ids, self._logprobs.read(ids)))
        logprobs = dict.fromkeys(range(len(ids)))
        if self._logprobs is not None:
            found = self._logprobs.read([ids[row] for row in self._asked.reported])
            logprobs |= zip(self._asked.reported, found, strict=True)
        bits = dict.fromkeys(range(len(ids)))
        if self._bits is not None:
            bits |= zip(self._asked.watched, self._bits.tolist(), strict=True)
        return [
            Sampled(token_id, None if token_id == NO_TOKEN else logprob, logits_checksum)
            for token_id, logprob, logits_checksum in zip(ids, logprobs.values(), bits.values(), strict=True)
        ]


def sample(backend: Backend, logits: Tensor, parts: Sequence[LogitsSlice], up: HostCopies) -> Choices:
    """One token a row. logits are fp32 [rows of the parts, vocab], and the sampler's to change."""
    asked = _asked_of(parts)
    changes = any(map(is_adjusted, parts))
    bits = up.take(checksums(_rows(logits, asked.watched))) if asked.watched else None
    if not changes and _is_greedy(parts) and (logits.is_cuda or len(asked.reported) == len(logits)):
        token_ids, logprobs = _choose_greedily(backend, logits, asked, up)
    else:
        raw = _rows(logits, asked.reported, copy=changes) if asked.reported else None  # [reported, vocab]
        cut = adjust(logits, parts) if changes else []
        token_ids = backend.sample(logits, _settings(parts, logits.device))
        _mark_without_choice(logits, cut, token_ids)
        logprobs = None
        if raw is not None:
            chosen = _rows(token_ids, asked.reported).clamp(min=0)  # NO_TOKEN has no logprob; any will do
            logprobs = logprobs_of(backend, raw, chosen, asked.counts, up)
    return Choices(token_ids, up.take(token_ids), asked, logprobs, bits)


def _choose_greedily(
    backend: Backend, logits: Tensor, asked: _Asked, up: HostCopies
) -> tuple[Tensor, Logprobs | None]:
    """The best of each row of the raw logits: its logprob comes with it."""
    token_ids, values = backend.sample_greedy(logits)
    if not asked.reported:
        return token_ids, None
    if any(asked.counts):
        raw, chosen = _rows(logits, asked.reported), _rows(token_ids, asked.reported)
        return token_ids, logprobs_of(backend, raw, chosen, asked.counts, up)
    return token_ids, Logprobs(up.take(_rows(values, asked.reported)), None, None, asked.counts)


def _is_greedy(parts: Sequence[LogitsSlice]) -> bool:
    return all(part.span.sampling.params.temperature == 0 for part in parts)


def _asked_of(parts: Sequence[LogitsSlice]) -> _Asked:
    reported: list[int] = []
    counts: list[int] = []
    watched: list[int] = []
    at = 0
    for part in parts:
        span, rows = part.span, range(at, at + part.stop - part.first)
        if span.logprobs is not None:
            reported.extend(rows)
            counts.extend([span.logprobs] * len(rows))
        if span.with_checksums:
            watched.extend(rows)
        at = rows.stop
    return _Asked(reported, counts, watched)


def _rows(tensor: Tensor, rows: list[int], *, copy: bool = False) -> Tensor:
    """Some rows; all of them are the tensor itself, unless a copy must be kept."""
    if len(rows) == len(tensor):
        return tensor.clone() if copy else tensor
    return tensor.index_select(0, _index(rows, tensor.device))


def _mark_without_choice(logits: Tensor, cut: list[int], token_ids: Tensor) -> None:
    """The rows of which everything was left out give NO_TOKEN: even the best of them is."""
    if not cut:
        return
    rows = _index(cut, logits.device)
    chosen = token_ids[rows]
    token_ids.index_copy_(0, rows, chosen.where(logits[rows, chosen] > -torch.inf, NO_TOKEN))


def _index(rows: list[int], device: torch.device) -> Tensor:
    return send_array(np.array(rows, np.int64), device)


def _settings(parts: Sequence[LogitsSlice], device: torch.device) -> SamplingBatch:
    """Per row: temperature, top-k, top-p, min-p, seed, position of the token; in one buffer, for one copy."""
    counts = np.array([part.num_rows for part in parts])
    total = int(counts.sum())
    stride = aligned(total, 4)
    host = staging(4 * stride, device)
    wide = host.numpy()[: 2 * stride].reshape(2, stride)[:, :total]
    narrow = host.numpy()[2 * stride :].view(np.float32).reshape(4, stride)[:, :total]
    inside = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)  # which row of its part
    params = [part.span.sampling.params for part in parts]
    wide[0] = np.repeat(np.array([_signed(part.span.sampling.seed) for part in parts]), counts)
    wide[1] = np.repeat(np.array([part.first_end for part in parts]), counts) + inside
    narrow[0] = np.repeat(np.array([each.temperature for each in params]), counts)
    narrow[1] = np.repeat(np.array([each.top_p for each in params]), counts)
    narrow[2] = np.repeat(np.array([each.min_p for each in params]), counts)
    narrow[3].view(np.int32)[:] = np.repeat(np.array([each.top_k for each in params]), counts)
    sent = send(host, device)
    seeds, positions = sent[: 2 * stride].view(2, stride)[:, :total]
    temperature, top_p, min_p, top_k = sent[2 * stride :].view(torch.float32).view(4, stride)[:, :total]
    return SamplingBatch(temperature, top_k.view(torch.int32), top_p, min_p, seeds, positions)


def _signed(seed: int) -> int:
    """The bit pattern of a uint64 as an int64."""
    return seed - 2 * _SIGN if seed >= _SIGN else seed
