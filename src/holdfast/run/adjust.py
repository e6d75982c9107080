"""What a request's settings do to logits before a token is chosen: penalties, bias, then what is not allowed is left out.

Each row is changed by its own settings and tokens alone. Left out means -inf. The order is that of `SamplingParams`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.run.listed import listed
from holdfast.run.parts import Part, Placed
from holdfast.run.penalties import penalise

Bools = NDArray[np.bool_]


def adjust(logits: Tensor, parts: Sequence[Part]) -> list[int]:
    """Changes the logits, fp32 [rows, vocab], in place; returns the rows of which something may have been left out."""
    placed: list[tuple[int, Part]] = []
    at = 0
    for part in parts:
        if _is_adjusted(part):
            placed.append((at, part))
        at += part.num_rows
    if not placed:
        return []
    penalise(logits, placed)
    _add_biases(logits, placed)
    return _leave_out(logits, placed)


def _is_adjusted(part: Part) -> bool:
    how = part.span.sampling
    params = how.params
    return bool(
        part.masks
        or how.forbidden_ids
        or how.bad_words
        or params.logit_bias
        or params.bad_token_ids
        or params.allowed_token_ids is not None
        or params.penalises
    )


def _add_biases(logits: Tensor, placed: Placed) -> None:
    for at, part in placed:
        params = part.span.sampling.params
        if params.biases:
            of = listed(params, logits.shape[1], logits.device)
            logits[at : at + part.num_rows, of.bias_ids] += of.biases


def _leave_out(logits: Tensor, placed: Placed) -> list[int]:
    vocab_size, device = logits.shape[1], logits.device
    touched: list[int] = []
    single: list[tuple[int, int]] = []  # (row, token id)
    for at, part in placed:
        how = part.span.sampling
        forbidden: Tensor | None = None
        if how.params.allowed_ids is not None or how.params.bad_ids:
            forbidden = listed(how.params, vocab_size, device).forbidden
        bad_endings = _bad_endings(part)
        for index in range(part.num_rows):
            row, some = at + index, list(bad_endings[index])
            early = how.forbidden_ids if _is_early(part, index) else ()
            mask = part.masks[index] if part.masks else None
            if mask is not None:
                allowed = torch.from_numpy(_allowed(mask, early, vocab_size)).to(device)
                logits[row].masked_fill_(~allowed, -torch.inf)
            else:
                some.extend(early)
            if forbidden is not None:
                logits[row].masked_fill_(forbidden, -torch.inf)
            single.extend((row, token_id) for token_id in some if token_id < vocab_size)
            if some or mask is not None or forbidden is not None:
                touched.append(row)
    if single:
        rows, ids = torch.tensor(single, device=device).unbind(1)
        logits[rows, ids] = -torch.inf
    return touched


def _is_early(part: Part, index: int) -> bool:
    """Whether the answer is still shorter than min_tokens."""
    how = part.span.sampling
    return part.first_end + index < how.prompt_len + how.params.min_tokens


def _allowed(mask: bytes, early: tuple[int, ...], vocab_size: int) -> Bools:
    """The tokens a grammar allows, less those that would end the answer too early.

    Where the form is complete and nothing but its end may follow, min_tokens is waived: the answer could only be made
    longer by breaking its form.
    """
    allowed = np.zeros(vocab_size, np.bool_)
    bits = np.unpackbits(
        np.frombuffer(mask, np.uint8), count=min(vocab_size, 8 * len(mask)), bitorder="little"
    )
    allowed[: len(bits)] = bits
    if early:
        rest = allowed.copy()
        rest[[token_id for token_id in early if token_id < vocab_size]] = False
        if rest.any():
            return rest
    return allowed


def _bad_endings(part: Part) -> list[list[int]]:
    """The tokens that would complete a bad word, for each row."""
    span, words = part.span, part.span.sampling.bad_words
    if not words:
        return [[]] * part.num_rows
    assert len(span.history) == span.start, "bad words need everything that stands before the span"
    always = [word[0] for word in words if len(word) == 1]
    behind: dict[int, list[tuple[int, ...]]] = {}  # by the token before the last
    for word in words:
        if len(word) > 1:
            behind.setdefault(word[-2], []).append(word)
    tokens = span.history + span.token_ids
    endings = []
    for end in range(part.first_end, part.first_end + part.num_rows):
        begun = behind.get(tokens[end - 1], ())
        endings.append(
            always + [word[-1] for word in begun if tokens[max(0, end + 1 - len(word)) : end] == word[:-1]]
        )
    return endings
