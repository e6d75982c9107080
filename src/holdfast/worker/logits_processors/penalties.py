"""Penalties for tokens that were said before: repetition over prompt and answer, frequency and presence over the answer.

    repetition   logit > 0 ? logit / r : logit * r      if the token stands anywhere before
    frequency    logit - f * count                      how often it stands in the answer
    presence     logit - p                              if it stands in the answer

A row's penalties are a function of its own tokens, so there are no counts to keep or to roll back. Every operation is
rounded to fp32 by itself: the bits are those of any one row computed alone.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.worker.logits_slices import LogitsSlice, Placed
from holdfast.worker.transfer import send_array

Ints = NDArray[np.int64]


def penalise(logits: Tensor, placed: Placed) -> None:
    """Changes the logits, fp32 [rows, vocab], of the tokens that stand before each row."""
    vocab_size = logits.shape[1]
    found = [
        (part, *_said(at, part, vocab_size)) for at, part in placed if part.span.sampling.params.penalises
    ]
    if not found:
        return
    settings = [part.span.sampling.params for part, *_ in found]
    lengths = [len(rows) for _, rows, *_ in found]
    numbers = np.stack(  # fp32 [4, said]
        [
            _spread([params.repetition_penalty for params in settings], lengths),
            _spread([params.frequency_penalty for params in settings], lengths),
            _spread([params.presence_penalty for params in settings], lengths),
            np.concatenate([counts for *_, counts in found]).astype(np.float32),
        ]
    )
    repetition, frequency, presence, counts = send_array(numbers, logits.device)
    index = np.concatenate([rows * vocab_size + ids for _, rows, ids, _ in found])  # no place twice
    where = send_array(index, logits.device)
    said = logits.view(-1).index_select(0, where)  # all of these are [said], fp32 but for where
    said = torch.where(said > 0, said / repetition, said * repetition)
    said = said - frequency * counts
    said = torch.where(counts > 0, said - presence, said)
    logits.view(-1).index_copy_(0, where, said)


def _said(at: int, part: LogitsSlice, vocab_size: int) -> tuple[Ints, Ints, Ints]:
    """Which tokens stand before which row, and how often in the answer: three arrays of one length."""
    span = part.span
    assert len(span.history) == span.start, "a penalty needs everything that stands before the span"
    tokens = np.array(span.history + span.token_ids[: part.stop], dtype=np.int64)
    ids, first_at, inverse = _distinct(tokens, vocab_size)
    ends = part.first_end + np.arange(part.num_rows)  # how many tokens stand before each row's own
    counts = _counts(inverse, len(ids), span.sampling.prompt_len, ends)
    rows, columns = np.nonzero(first_at < ends[:, None])
    return at + rows, ids[columns], counts[rows, columns]


def _distinct(tokens: Ints, vocab_size: int) -> tuple[Ints, Ints, Ints]:
    """The distinct ids in order of appearance, where each appears first, and which of them each token is.

    What np.unique does by sorting, at a fraction of its time. Only places of the scratch are read that were written.
    """
    places = np.arange(len(tokens))
    scratch = np.empty(vocab_size, np.int64)
    scratch[tokens[::-1]] = places[::-1]  # of several writes to one place the last stays
    first_of = scratch[tokens]
    first_at = np.flatnonzero(first_of == places)
    ids = tokens[first_at]
    scratch[ids] = np.arange(len(ids))
    return ids, first_at, scratch[tokens]


def _counts(inverse: Ints, num_ids: int, prompt_len: int, ends: Ints) -> Ints:
    """How often each of the sequence's own ids stands in the answer before each row, [rows, ids]."""
    counts = np.empty((len(ends), num_ids), np.int64)
    counts[0] = np.bincount(inverse[prompt_len : ends[0]], minlength=num_ids)
    for row in range(1, len(ends)):
        counts[row] = counts[row - 1]
        newest = ends[row] - 1
        counts[row, inverse[newest]] += newest >= prompt_len
    return counts


def _spread(values: Sequence[float], lengths: Sequence[int]) -> NDArray[np.float32]:
    """Each value so many times."""
    return np.repeat(np.array(values, np.float32), lengths)
