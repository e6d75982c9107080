"""Penalties for tokens that occurred before: repetition, frequency and presence.

    repetition   logit > 0 ? logit / r : logit * r      if the token occurred in prompt or answer
    frequency    logit - f * count                      count: how often it occurred in the answer
    presence     logit - p                              if it occurred in the answer

The penalties are a function of the request's own tokens, so there are no counts to keep or to roll
back. Every operation is rounded to fp32 by itself: the bits do not depend on the batch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.worker.logits import LogitsSlice, PlacedSlices
from holdfast.worker.logits_processors.device_history import is_on_device
from holdfast.worker.transfer import send_array

Ints = NDArray[np.int64]


def apply_penalties(logits: Tensor, placed: PlacedSlices) -> None:
    """Change the logits, fp32 [tokens, vocab], of the token ids that occurred before, in place: of
    slices whose span carries its history."""
    vocab_size = logits.shape[1]
    found = [
        (one, *_occurred(at, one, vocab_size))
        for at, one in placed
        if one.span.sampling.params.penalises and not is_on_device(one)
    ]
    if not found:
        return
    settings = [one.span.sampling.params for one, *_ in found]
    lengths = [len(rows) for _, rows, *_ in found]
    numbers = np.stack(  # fp32 [4, n]
        [
            _repeat([params.repetition_penalty for params in settings], lengths),
            _repeat([params.frequency_penalty for params in settings], lengths),
            _repeat([params.presence_penalty for params in settings], lengths),
            np.concatenate([counts for *_, counts in found]).astype(np.float32),
        ]
    )
    repetition, frequency, presence, counts = send_array(numbers, logits.device)
    index = np.concatenate([rows * vocab_size + ids for _, rows, ids, _ in found])  # no index occurs twice
    where = send_array(index, logits.device)
    values = logits.view(-1).index_select(0, where)  # fp32 [n], as the penalties
    xp = arrays_on(logits.device)
    values = xp.where(values > 0, values / repetition, values * repetition)
    values = values - frequency * counts
    values = xp.where(counts > 0, values - presence, values)
    logits.view(-1).index_copy_(0, where, values)


def _occurred(at: int, one: LogitsSlice, vocab_size: int) -> tuple[Ints, Ints, Ints]:
    """Return rows of the logits, token ids that occurred before them, and how often in the answer: three
    arrays of one length."""
    span = one.span
    assert len(span.history) == span.start, "a penalty needs all tokens before the span"
    tokens = np.array(span.history + span.token_ids[: one.stop], dtype=np.int64)
    ids, first_at, inverse = _distinct(tokens, vocab_size)
    ends = one.first_position + np.arange(one.num_tokens)  # how many tokens precede each sampled one
    counts = _counts(inverse, len(ids), span.sampling.prompt_len, ends)
    rows, columns = np.nonzero(first_at < ends[:, None])
    return at + rows, ids[columns], counts[rows, columns]


def _distinct(tokens: Ints, vocab_size: int) -> tuple[Ints, Ints, Ints]:
    """Return the distinct ids in order of occurrence, where each occurs first, and which of them each token
    is: as np.unique does, without sorting and much faster."""
    places = np.arange(len(tokens))
    scratch = np.empty(vocab_size, np.int64)  # only written elements are read
    scratch[tokens[::-1]] = places[::-1]  # of several writes to one element the last wins
    first_of = scratch[tokens]
    first_at = np.flatnonzero(first_of == places)
    ids = tokens[first_at]
    scratch[ids] = np.arange(len(ids))
    return ids, first_at, scratch[tokens]


def _counts(inverse: Ints, num_ids: int, prompt_len: int, ends: Ints) -> Ints:
    """Return how often each id occurs in the answer before each sampled token, [tokens, ids]."""
    counts = np.empty((len(ends), num_ids), np.int64)
    counts[0] = np.bincount(inverse[prompt_len : ends[0]], minlength=num_ids)
    for row in range(1, len(ends)):
        counts[row] = counts[row - 1]
        newest = ends[row] - 1
        counts[row, inverse[newest]] += newest >= prompt_len
    return counts


def _repeat(values: Sequence[float], lengths: Sequence[int]) -> NDArray[np.float32]:
    return np.repeat(np.array(values, np.float32), lengths)
