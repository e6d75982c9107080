"""What may not be chosen is left out: listed tokens, what a grammar does not allow, bad words, ends before min_tokens.

A logit becomes the smaller one of itself and its limit, which is inf for what is allowed and -inf for what is not. So
the bits of what is allowed stay as they are.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from holdfast.worker.logits_processors.token_lists import listed
from holdfast.worker.logits_slices import LogitsSlice, Placed
from holdfast.worker.transfer import send_array

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
        endings = _bad_endings(part)
        if part.masks:
            torch.minimum(rows, _grammar_limits(part, endings, vocab_size, device), out=rows)
            cut.update(at + index for index, mask in enumerate(part.masks) if mask is not None)
        for index, token_ids in enumerate(endings):
            token_ids = token_ids + _early_ends(part, index)
            single.extend((at + index, token_id) for token_id in token_ids if token_id < vocab_size)
    if single:
        where, ids = np.array(single, np.int64).T
        logits.view(-1).index_fill_(0, send_array(where * vocab_size + ids, device), -torch.inf)
        cut.update(row for row, _ in single)
    return sorted(cut)


def _grammar_limits(
    part: LogitsSlice, endings: list[list[int]], vocab_size: int, device: torch.device
) -> Tensor:
    """fp32 [rows, vocab]. A mask is read as one number, bit i for token i."""
    everything = (1 << vocab_size) - 1
    num_bytes = -(-vocab_size // 8)
    puts_off = bool(part.span.sampling.suppressed_ids) and _is_early(part, 0)
    listed_bits = everything
    if puts_off:
        listed_bits &= listed(part.span.sampling.params, vocab_size, device).allowed_bits
    bits = bytearray()
    for index, mask in enumerate(part.masks):
        allowed = everything if mask is None else int.from_bytes(mask, "little") & everything
        if puts_off and mask is not None and _is_early(part, index):
            others = listed_bits & ~_bits(endings[index], vocab_size)
            allowed = _put_ends_off(part, allowed, others, vocab_size)
        bits += allowed.to_bytes(num_bytes, "little")
    limits = np.take(_LIMITS, np.frombuffer(bits, np.uint8), axis=0)  # [rows * num_bytes, 8]
    return send_array(limits, device).view(part.num_rows, -1)[:, :vocab_size]


def _put_ends_off(part: LogitsSlice, allowed: int, others: int, vocab_size: int) -> int:
    """What a form allows before min_tokens; others is what the request's other settings allow.

    Where nothing is left but to end, min_tokens is waived: the answer could only be made longer by breaking its form. That
    is for the model's own ends, which a form allows only where it is complete. A stop id of the client's may be text of
    the form as well, and ending with it would break the form off: it stays forbidden, though it were all there is.
    """
    how = part.span.sampling
    going_on = allowed & ~_bits(how.suppressed_ids, vocab_size)
    return going_on if going_on & others else allowed & _bits(how.eos_ids, vocab_size)


def _bits(token_ids: Iterable[int], vocab_size: int) -> int:
    return sum(1 << token_id for token_id in {*token_ids} if token_id < vocab_size)


def _early_ends(part: LogitsSlice, index: int) -> list[int]:
    """The ends that come too early in this row. Where it has a mask, that took them into account."""
    has_mask = bool(part.masks) and part.masks[index] is not None
    return [] if has_mask or not _is_early(part, index) else list(part.span.sampling.suppressed_ids)


def _is_early(part: LogitsSlice, index: int) -> bool:
    """Whether the answer is still shorter than min_tokens."""
    how = part.span.sampling
    return part.first_end + index < how.prompt_len + how.params.min_tokens


def _bad_endings(part: LogitsSlice) -> list[list[int]]:
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
