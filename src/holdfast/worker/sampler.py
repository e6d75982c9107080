"""The sampler: from logits to tokens and their logprobs. The work is enqueued first and read later.

A sampled token depends on its logits, its request's settings, (seed, position) and the request's
own tokens before it. There is no state to roll back, so decode, window and prefill tokens are
sampled alike. Logprobs and checksums are those of the raw logits, before any logits processor;
asking for them changes no token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.core.step_plan import NO_TOKEN, Sampled
from holdfast.numerics.arrays import Device, Tensor, arrays_on
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import SamplingBatch
from holdfast.worker.logits import LogitsSlice, Logprobs, PlacedSlices, gather_logprobs
from holdfast.worker.logits_processors.device_history import (
    DeviceTokens,
    is_on_device,
    mask_bad_words_on_device,
    penalise_on_device,
)
from holdfast.worker.logits_processors.penalties import apply_penalties
from holdfast.worker.logits_processors.token_masks import apply_token_masks, token_lists_of
from holdfast.worker.spot_check import logits_checksums
from holdfast.worker.transfer import HostCopies, aligned, send, send_array, staging_buffer

_SIGN = 1 << 63


@dataclass(frozen=True)
class _Reports:
    """The rows of the logits whose logprobs are reported, with how many alternatives or which, and those
    with checksums."""

    with_logprobs: list[int]
    counts: list[int]
    named: list[tuple[int, ...]]
    with_checksums: list[int]


@dataclass(frozen=True)
class SampledTokens:
    """The sampled tokens of one batch: on the device at once, to be read after `HostCopies.wait`."""

    token_ids: Tensor  # int64 [n], on the device
    _ids: Tensor  # the same on the host
    _reports: _Reports
    _logprobs: Logprobs | None
    _checksums: Tensor | None  # int64 [with_checksums]

    def read(self) -> list[Sampled]:
        ids: list[int] = self._ids.tolist()
        if self._checksums is None:
            if self._logprobs is None:
                return list(map(Sampled, ids))
            if len(self._reports.with_logprobs) == len(ids) and NO_TOKEN not in ids:  # the common case
                return list(map(Sampled, ids, self._logprobs.read(ids)))
        logprobs = dict.fromkeys(range(len(ids)))
        if self._logprobs is not None:
            found = self._logprobs.read([ids[row] for row in self._reports.with_logprobs])
            logprobs |= zip(self._reports.with_logprobs, found, strict=True)
        checksums = dict.fromkeys(range(len(ids)))
        if self._checksums is not None:
            checksums |= zip(self._reports.with_checksums, self._checksums.tolist(), strict=True)
        return [
            Sampled(token_id, None if token_id == NO_TOKEN else logprob, checksum)
            for token_id, logprob, checksum in zip(ids, logprobs.values(), checksums.values(), strict=True)
        ]


def sample(
    backend: Backend,
    logits: Tensor,
    slices: Sequence[LogitsSlice],
    copies: HostCopies,
    tokens: DeviceTokens | None = None,
) -> SampledTokens:
    """Sample one token from each row of the logits, fp32 [tokens of the slices, vocab], which are
    overwritten. tokens: for spans without a history that they need."""
    reports = _reports_of(slices)
    changes = any(map(has_logits_processors, slices))
    checksums = None
    if reports.with_checksums:
        checksums = copies.add(logits_checksums(_rows(logits, reports.with_checksums)))
    all_reported = len(reports.with_logprobs) == logits.shape[0]
    if not changes and _is_greedy(slices) and (logits.is_cuda or all_reported):
        token_ids, logprobs = _sample_greedy(backend, logits, reports, copies)
    else:
        raw = (
            _rows(logits, reports.with_logprobs, copy=changes) if reports.with_logprobs else None
        )  # [r, vocab]
        if changes:
            apply_logits_processors(logits, slices, tokens)
        token_ids = backend.sample(logits, send_settings(slices, logits.device))
        logprobs = None
        if raw is not None:
            chosen = _rows(token_ids, reports.with_logprobs)
            logprobs = gather_logprobs(backend, raw, chosen, reports.counts, copies, reports.named)
    return SampledTokens(token_ids, copies.add(token_ids), reports, logprobs, checksums)


def apply_logits_processors(
    logits: Tensor, slices: Sequence[LogitsSlice], tokens: DeviceTokens | None = None
) -> None:
    """Change the logits, fp32 [tokens, vocab], in place: penalties, logit bias, token masks, as
    `SamplingParams` says. Each token's by its own request's settings and tokens alone."""
    placed: list[tuple[int, LogitsSlice]] = []
    at = 0
    for one in slices:
        if has_logits_processors(one):
            placed.append((at, one))
        at += one.num_tokens
    unread = [(at, one) for at, one in placed if is_on_device(one)]
    apply_penalties(logits, placed)
    if unread:
        assert tokens is not None, "penalties and bad words need all tokens before the span"
        penalise_on_device(logits, unread, tokens)
    _apply_logit_bias(logits, placed)
    apply_token_masks(logits, placed)
    if unread and tokens is not None:
        mask_bad_words_on_device(logits, unread, tokens)


def has_logits_processors(one: LogitsSlice) -> bool:
    return bool(one.masks) or one.span.sampling.changes_logits


def _apply_logit_bias(logits: Tensor, placed: PlacedSlices) -> None:
    vocab_size = logits.shape[1]
    places: list[NDArray[np.int64]] = []
    biases: list[NDArray[np.float32]] = []
    for at, one in placed:
        params = one.span.sampling.params
        if params.biases:
            lists = token_lists_of(params, vocab_size, logits.device)
            for row in range(at, at + one.num_tokens):
                places.append(row * vocab_size + lists.bias_ids)
                biases.append(lists.biases)
    if not places:
        return
    where = send_array(np.concatenate(places), logits.device)  # no place occurs twice
    values = logits.view(-1).index_select(0, where) + send_array(np.concatenate(biases), logits.device)
    logits.view(-1).index_copy_(0, where, values)


def _sample_greedy(
    backend: Backend, logits: Tensor, reports: _Reports, copies: HostCopies
) -> tuple[Tensor, Logprobs | None]:
    """Take the argmax of the raw logits. The kernel gives its logprob too."""
    token_ids, values = backend.sample_greedy(logits)
    if not reports.with_logprobs:
        return token_ids, None
    if any(reports.counts) or any(reports.named):
        raw, chosen = _rows(logits, reports.with_logprobs), _rows(token_ids, reports.with_logprobs)
        return token_ids, gather_logprobs(backend, raw, chosen, reports.counts, copies, reports.named)
    return token_ids, Logprobs(copies.add(_rows(values, reports.with_logprobs)), None, None, reports.counts)


def _is_greedy(slices: Sequence[LogitsSlice]) -> bool:
    return all(one.span.sampling.params.temperature == 0 for one in slices)


def _reports_of(slices: Sequence[LogitsSlice]) -> _Reports:
    with_logprobs: list[int] = []
    counts: list[int] = []
    named: list[tuple[int, ...]] = []
    with_checksums: list[int] = []
    at = 0
    for one in slices:
        span, rows = one.span, range(at, at + one.stop - one.first)
        if span.logprobs is not None:
            with_logprobs.extend(rows)
            names = span.sampling.params.named_ids
            counts.extend([0 if names else span.logprobs] * len(rows))
            named.extend([names] * len(rows))
        if span.with_checksums:
            with_checksums.extend(rows)
        at = rows.stop
    return _Reports(with_logprobs, counts, named, with_checksums)


def _rows(tensor: Tensor, rows: list[int], *, copy: bool = False) -> Tensor:
    """Return some rows. If these are all rows, return the tensor itself, unless a copy is needed."""
    if len(rows) == tensor.shape[0]:
        return tensor.clone() if copy else tensor
    return tensor.index_select(0, send_array(np.array(rows, np.int64), tensor.device))


def send_settings(slices: Sequence[LogitsSlice], device: Device) -> SamplingBatch:
    """Send the settings of every token of the slices, in one copy."""
    num_tokens = sum(one.num_tokens for one in slices)
    host = staging_buffer(settings_words(num_tokens), device)
    fill_settings(host.numpy(), slices, num_tokens)
    return read_settings(send(host, device), num_tokens)


def settings_words(size: int) -> int:
    """Return the length of the buffer of `fill_settings`."""
    return 4 * aligned(size, 4)


def fill_settings(words: NDArray[np.int64], slices: Sequence[LogitsSlice], size: int) -> None:
    """Write the settings of every token, for `size` rows. Rows beyond the tokens are greedy.

    int64 | seeds | positions |    float32 | temperature | top_p | min_p | top_k as int32 |
    """
    counts = np.array([one.num_tokens for one in slices])
    num_tokens, stride = int(counts.sum()), aligned(size, 4)
    wide = words[: 2 * stride].reshape(2, stride)
    narrow = words[2 * stride :].view(np.float32).reshape(4, stride)
    if num_tokens < size:
        words[:] = 0
    wide, narrow = wide[:, :num_tokens], narrow[:, :num_tokens]
    samplings = [one.span.sampling for one in slices]
    rows = np.array(
        [(each.params.temperature, each.params.top_p, each.params.min_p) for each in samplings], np.float32
    )
    seeds = np.array([_as_int64(each.seed) for each in samplings])
    top_ks = np.array([each.params.top_k for each in samplings], np.int32)
    firsts = np.array([one.first_position for one in slices])
    if np.any(counts != 1):
        offsets = np.arange(num_tokens) - np.repeat(np.cumsum(counts) - counts, counts)  # within the slice
        rows, seeds, top_ks, firsts = (np.repeat(each, counts, 0) for each in (rows, seeds, top_ks, firsts))
        firsts = firsts + offsets
    wide[0], wide[1] = seeds, firsts
    narrow[:3] = rows.T
    narrow[3].view(np.int32)[:] = top_ks


def read_settings(words: Tensor, size: int) -> SamplingBatch:
    """Return views of a buffer that `fill_settings` has filled, on the device."""
    stride = aligned(size, 4)
    seeds, positions = words[: 2 * stride].view(2, stride)[:, :size]
    xp = arrays_on(words.device)
    narrow = words[2 * stride :].view(xp.float32).view(4, stride)
    temperature, top_p, min_p, top_k = narrow[:, :size]
    return SamplingBatch(temperature, top_k.view(xp.int32), top_p, min_p, seeds, positions)


def _as_int64(seed: int) -> int:
    """Return the bit pattern of a uint64 as an int64."""
    return seed - 2 * _SIGN if seed >= _SIGN else seed
