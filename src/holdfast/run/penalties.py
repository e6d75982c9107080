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

from holdfast.run.parts import Part, Placed

Ints = NDArray[np.int64]


def penalise(logits: Tensor, placed: Placed) -> None:
    """Changes the logits, fp32 [rows, vocab], of the tokens that stand before each row."""
    found = [(part, *_said(at, part)) for at, part in placed if part.span.sampling.params.penalises]
    if not found:
        return
    vocab_size = logits.shape[1]
    index = np.concatenate([rows * vocab_size + ids for _, rows, ids, _ in found])  # [said], no place twice
    counts = torch.from_numpy(np.concatenate([counts for *_, counts in found])).to(torch.float32)
    settings = [part.span.sampling.params for part, *_ in found]
    lengths = [len(rows) for _, rows, *_ in found]
    repetition = _spread([params.repetition_penalty for params in settings], lengths)
    frequency = _spread([params.frequency_penalty for params in settings], lengths)
    presence = _spread([params.presence_penalty for params in settings], lengths)
    where = torch.from_numpy(index).to(logits.device)
    said = logits.view(-1)[where]
    said = torch.where(said > 0, said / repetition, said * repetition)
    said = said - frequency * counts
    said = torch.where(counts > 0, said - presence, said)
    logits.view(-1)[where] = said


def _said(at: int, part: Part) -> tuple[Ints, Ints, Ints]:
    """Which tokens stand before which row, and how often in the answer: three arrays of one length."""
    span = part.span
    assert len(span.history) == span.start, "a penalty needs everything that stands before the span"
    tokens = np.array(span.history + span.token_ids[: part.stop], dtype=np.int64)
    ids, first_at, inverse = np.unique(tokens, return_index=True, return_inverse=True)
    ends = part.first_end + np.arange(part.num_rows)  # how many tokens stand before each row's own
    counts = _counts(inverse, len(ids), span.sampling.prompt_len, ends)
    rows, columns = np.nonzero(first_at < ends[:, None])
    return at + rows, ids[columns], counts[rows, columns]


def _counts(inverse: Ints, num_ids: int, prompt_len: int, ends: Ints) -> Ints:
    """How often each of the sequence's own ids stands in the answer before each row, [rows, ids]."""
    counts = np.empty((len(ends), num_ids), np.int64)
    counts[0] = np.bincount(inverse[prompt_len : ends[0]], minlength=num_ids)
    for row in range(1, len(ends)):
        counts[row] = counts[row - 1]
        newest = ends[row] - 1
        counts[row, inverse[newest]] += newest >= prompt_len
    return counts


def _spread(values: Sequence[float], lengths: Sequence[int]) -> Tensor:
    """Each value so many times, fp32."""
    return torch.tensor(values, dtype=torch.float32).repeat_interleave(torch.tensor(lengths))
