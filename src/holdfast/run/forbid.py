"""What may not be chosen is left out: listed tokens, what a grammar does not allow, bad words, ends before min_tokens.

A logit becomes the smaller one of itself and its limit, which is inf for what is allowed and -inf for what is not. So
the bits of what is allowed stay as they are.
"""

import numpy as np
import torch
from torch import Tensor

from holdfast.run.listed import listed
from holdfast.run.parts import Part, Placed

_BITS = (np.arange(256)[:, None] >> np.arange(8)) & 1
_LIMITS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))  # of the eight tokens of a byte, [256, 8]


def leave_out(logits: Tensor, placed: Placed) -> list[int]:
    """Changes the logits, fp32 [rows, vocab], in place; returns the rows of which something may have been left out."""
    vocab_size, device = logits.shape[1], logits.device
    cut: set[int] = set()
    single: list[tuple[int, int]] = []  # (row, token id)
    for at, part in placed:
        rows, params = logits[at : at + part.num_rows], part.span.sampling.params
        if params.allowed_ids is not None or params.bad_ids:
            limit = listed(params, vocab_size, device).limit
            torch.minimum(rows, limit, out=rows)
            cut.update(range(at, at + part.num_rows))
        if part.masks:
            torch.minimum(rows, _grammar_limits(part, vocab_size).to(device), out=rows)
            cut.update(at + index for index, mask in enumerate(part.masks) if mask is not None)
        for index, token_ids in enumerate(_single_tokens(part)):
            single.extend((at + index, token_id) for token_id in token_ids if token_id < vocab_size)
    if single:
        where, ids = torch.tensor(single, device=device).unbind(1)
        logits[where, ids] = -torch.inf
        cut.update(row for row, _ in single)
    return sorted(cut)


def _grammar_limits(part: Part, vocab_size: int) -> Tensor:
    """fp32 [rows, vocab]. A mask is read as one number, bit i for token i.

    Where the form is complete and nothing but its end may follow, min_tokens is waived: the answer could only be made
    longer by breaking its form.
    """
    everything = (1 << vocab_size) - 1
    ends = sum(1 << token_id for token_id in {*part.span.sampling.forbidden_ids} if token_id < vocab_size)
    num_bytes = -(-vocab_size // 8)
    bits = bytearray()
    for index, mask in enumerate(part.masks):
        if mask is None:
            allowed = everything
        else:
            allowed = int.from_bytes(mask, "little") & everything
            if _is_early(part, index):
                allowed = allowed & ~ends or allowed
        bits += allowed.to_bytes(num_bytes, "little")
    limits = np.take(_LIMITS, np.frombuffer(bits, np.uint8), axis=0)  # [rows * num_bytes, 8]
    return torch.from_numpy(limits).view(part.num_rows, -1)[:, :vocab_size]


def _single_tokens(part: Part) -> list[list[int]]:
    """For each row the ends that come too early, and the tokens that would complete a bad word."""
    found = _bad_endings(part)
    ends = part.span.sampling.forbidden_ids
    for index, token_ids in enumerate(found):
        has_mask = bool(part.masks) and part.masks[index] is not None  # which took the ends into account
        if ends and not has_mask and _is_early(part, index):
            token_ids.extend(ends)
    return found


def _is_early(part: Part, index: int) -> bool:
    """Whether the answer is still shorter than min_tokens."""
    how = part.span.sampling
    return part.first_end + index < how.prompt_len + how.params.min_tokens


def _bad_endings(part: Part) -> list[list[int]]:
    span, words = part.span, part.span.sampling.bad_words
    if not words:
        return [[] for _ in range(part.num_rows)]
    assert len(span.history) == span.start, "bad words need everything that stands before the span"
    always = [word[0] for word in words if len(word) == 1]
    begun: dict[int, list[tuple[int, ...]]] = {}  # by the token before the last
    for word in words:
        if len(word) > 1:
            begun.setdefault(word[-2], []).append(word)
    tokens = span.history + span.token_ids
    found = []
    for end in range(part.first_end, part.first_end + part.num_rows):
        completed = [
            word[-1]
            for word in begun.get(tokens[end - 1], ())
            if tokens[max(0, end + 1 - len(word)) : end] == word[:-1]
        ]
        found.append(always + completed)
    return found
