"""Penalties and bad words of rows whose earlier tokens only the device knows.

With async scheduling a span is started before the host has read the tokens before it. Then it has
no history, and the device reads the tokens beside the KV (`numerics/sampling.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.core.step_plan import UNKNOWN_TOKEN, Sampling
from holdfast.numerics.arrays import Device, Tensor, arrays_on
from holdfast.numerics.sampling import BadWordBatch, PenaltyBatch, TokenHistory, TokensBefore
from holdfast.worker.input_batch import PageTableCache
from holdfast.worker.logits import LogitsSlice, PlacedSlices
from holdfast.worker.transfer import aligned, send_array

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class DeviceTokens:
    """The tokens of all KV slots on the device, and the page tables to find a request's."""

    history: TokenHistory
    page_tables: PageTableCache


def is_on_device(one: LogitsSlice) -> bool:
    """Return whether the slice depends on tokens that its span does not carry."""
    span = one.span
    if not span.sampling.needs_history:
        return False
    return len(span.history) < span.start or UNKNOWN_TOKEN in span.token_ids


def penalise_on_device(logits: Tensor, unread: PlacedSlices, tokens: DeviceTokens) -> None:
    """Apply penalties as `apply_penalties` does, to slices without history."""
    found = [(at, one) for at, one in unread if one.span.sampling.params.penalises]
    if not found:
        return
    lengths = [one.num_tokens for _, one in found]
    settings = [one.span.sampling.params for _, one in found]
    rows, ends = _rows_and_ends(found)
    tables_and_prompts = [(place, one.span.sampling.prompt_len) for place, (_, one) in enumerate(found)]
    ints = np.repeat(np.array(tables_and_prompts, np.int32), lengths, 0).T
    penalties = [
        (each.repetition_penalty, each.frequency_penalty, each.presence_penalty) for each in settings
    ]
    floats = np.repeat(np.array(penalties, np.float32), lengths, 0).T
    table = tokens.page_tables.table([one.span.pages for _, one in found])
    *numbers, page_table = _send(
        [rows, ends, *ints, *np.ascontiguousarray(floats).view(np.int32), table], logits.device
    )
    device_rows, device_ends, table_rows, prompt_lens = numbers[:4]
    before = TokensBefore(device_ends, table_rows, page_table, int(ends.max()))
    on_device = (each.view(arrays_on(logits.device).float32) for each in numbers[4:])
    tokens.history.penalise(logits, PenaltyBatch(device_rows, before, prompt_lens, *on_device))


def mask_bad_words_on_device(logits: Tensor, unread: PlacedSlices, tokens: DeviceTokens) -> None:
    """Mask each token that would complete a bad word, for slices without history."""
    found = [(at, one) for at, one in unread if one.span.sampling.bad_words]
    if not found:
        return
    longest = max(len(word) for _, one in found for word in one.span.sampling.bad_words) - 1
    rows, ends = _rows_and_ends(found)
    num_words = np.repeat(
        [len(one.span.sampling.bad_words) for _, one in found], [one.num_tokens for _, one in found]
    )
    words = [_words(one.span.sampling, max(1, longest)) for _, one in found for _ in range(one.num_tokens)]
    table_rows = np.repeat(np.arange(len(found)), [one.num_tokens for _, one in found])
    ints = [
        np.repeat(rows, num_words),
        np.repeat(ends, num_words),
        np.repeat(table_rows, num_words),
        np.concatenate([lengths for _, lengths, _ in words]),
        np.concatenate([last_ids for _, _, last_ids in words]),
        np.concatenate([prefixes for prefixes, _, _ in words]),
        tokens.page_tables.table([one.span.pages for _, one in found]),
    ]
    pair_rows, pair_ends, pair_tables, word_lengths, last, prefixes, page_table = _send(
        [each.astype(np.int32) for each in ints], logits.device
    )
    before = TokensBefore(pair_ends, pair_tables, page_table, int(ends.max()))
    tokens.history.mask_bad_words(logits, BadWordBatch(pair_rows, before, prefixes, word_lengths, last))


def _rows_and_ends(found: PlacedSlices) -> Ints:
    """Return for every token its row of the logits, and how many tokens precede it: [2, tokens]."""
    lengths = np.array([one.num_tokens for _, one in found])
    firsts = np.array([(at, one.first_position) for at, one in found], np.int32)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.array(np.repeat(firsts, lengths, 0).T + within, np.int32)


def _words(sampling: Sampling, longest: int) -> tuple[Ints, Ints, Ints]:
    """Return a request's bad words without their last tokens, right-aligned [words, longest]; their
    lengths; their last tokens."""
    words = sampling.bad_words
    prefixes = np.zeros((len(words), longest), np.int32)
    for at, word in enumerate(words):
        if len(word) > 1:
            prefixes[at, longest - len(word) + 1 :] = word[:-1]
    lengths = np.array([len(word) - 1 for word in words], np.int32)
    return prefixes, lengths, np.array([word[-1] for word in words], np.int32)


def _send(arrays: Sequence[Ints], device: Device) -> list[Tensor]:
    """Send the arrays in one copy, each aligned."""
    starts = np.cumsum([0, *(aligned(each.size, 4) for each in arrays)])
    buffer = np.zeros(starts[-1], np.int32)
    for start, each in zip(starts, arrays, strict=False):
        buffer[start : start + each.size] = each.reshape(-1)
    sent = send_array(buffer, device)
    return [
        sent[start : start + each.size].view(each.shape) for start, each in zip(starts, arrays, strict=False)
    ]
