"""The sampling rule, and its parameters for a batch. Rows are independent of each other.

All backends follow one rule. Temperature 0 is greedy: the argmax, ties to the lowest id. Otherwise
z = logit / temperature in fp32, and

    1. top-k   keep the k largest z, ties at the threshold to the lowest id;
    2. top-p   keep the smallest set of the most likely tokens whose total probability, of the softmax over the kept tokens,
               reaches top_p; at least one token;
    3. min-p   keep the tokens with at least min_p times the largest probability;
    4. sample  the argmax of z + noise(seed, position, id) over the kept tokens, ties to the lowest id. The noise is Gumbel.

NaN counts as -inf. A row whose largest z is not finite gives the argmax of its logits. A row without a
token gives NO_TOKEN: each of its logits is -inf, or min-p keeps none, because it is NaN or above 1.

Before that logits processors change the logits. Some read the tokens before a row, which only the device may
know. So the tokens of a request are kept beside its KV, one id for each slot: they are written, shared, rolled
back and freed with its pages, and there are no counts to keep.
"""

from dataclasses import dataclass
from typing import Protocol

from holdfast.numerics.arrays import Tensor


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of n rows.

    All tensors are contiguous, of length n, and on the device of the logits.
    """

    temperature: Tensor  # float32; 0: greedy
    top_k: Tensor  # int32; 0: off
    top_p: Tensor  # float32; 1: off
    min_p: Tensor  # float32; 0: off
    seeds: Tensor  # int64, the bits of a uint64
    positions: Tensor  # int64, position of the sampled token


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
        """The tokens of a pass, int64 [tokens] both, in slots that its KV is written to. Slot -1 is skipped."""

    def penalise(self, logits: Tensor, batch: PenaltyBatch) -> None:
        """Change the logits, fp32 [tokens, V], in place."""

    def mask_bad_words(self, logits: Tensor, batch: BadWordBatch) -> None:
        """Change the logits, fp32 [tokens, V], in place."""
