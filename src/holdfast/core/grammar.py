"""The grammar of a structured output, as the scheduler and the worker use it: which tokens may come
next.

A grammar's state follows the committed tokens of one answer and changes only when a token is
committed. Candidates are tried within one call and leave no state, so a rollback of candidates
costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Grammar(Protocol):
    """One answer's grammar."""

    def commit(self, token_id: int) -> None:
        """Append one committed token."""
        ...

    def restart(self) -> None:
        """Back to the first token of the answer."""
        ...

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens are valid, one after another, after the committed tokens."""
        ...

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        """Return which tokens may come at the last `num_masks` of len(candidates) + 1 positions: after the
        committed tokens, after the first candidate, and so on.

        A mask is little-endian bits, bit i for token i. All zeros: no token is legal, and `problem`
        says why. None: a candidate before this position is invalid, so whatever is sampled here
        will be dropped with it.
        """
        ...

    @property
    def problem(self) -> str | None:
        """Why no token may follow the committed ones, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Constraint:
    """The grammar of a span and the candidates up to the span's last token."""

    grammar: Grammar
    candidates: tuple[int, ...]
