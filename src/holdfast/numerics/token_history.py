"""Rows of logits that are changed by the tokens before them, where only the device knows those.

The tokens of a request are kept beside its KV, one id for each slot. So they are written, shared,
rolled back and freed with its pages, and there are no counts to keep.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class TokensBefore:
    """The tokens before each of n rows: the first `ends[i]` tokens of a request whose pages are
    page_table[table_rows[i]]. All tensors are on the device of the logits, int32."""

    ends: Tensor  # [n]
    table_rows: Tensor  # [n]
    page_table: Tensor  # [requests, pages]
    max_end: int


@dataclass(frozen=True)
class PenaltyBatch:
    """Penalties of n rows of the logits, by the rule of `worker/logits_processors/penalties.py`.

    All tensors are contiguous, of length n, and on the device of the logits.
    """

    rows: Tensor  # int32; no row occurs twice
    before: TokensBefore
    prompt_lens: Tensor  # int32: the answer starts here
    repetition: Tensor  # float32
    frequency: Tensor  # float32
    presence: Tensor  # float32


@dataclass(frozen=True)
class BadWordBatch:
    """n pairs of a row and a word: the word's last token is masked if the tokens before the row end
    with its other tokens."""

    rows: Tensor  # int32 [n]
    before: TokensBefore
    words: Tensor  # int32 [n, longest]: without the last token, right-aligned
    lengths: Tensor  # int32 [n]: of the words without their last tokens
    last_ids: Tensor  # int32 [n]


class TokenHistory(Protocol):
    """The token ids of all KV slots, on the device."""

    def write(self, slots: Tensor, token_ids: Tensor) -> None:
        """The tokens of a pass, int64 [tokens] both, in slots that its KV is written to."""
        ...

    def penalise(self, logits: Tensor, batch: PenaltyBatch) -> None:
        """Change the logits, fp32 [tokens, V], in place."""
        ...

    def mask_bad_words(self, logits: Tensor, batch: BadWordBatch) -> None:
        """Change the logits, fp32 [tokens, V], in place."""
        ...
