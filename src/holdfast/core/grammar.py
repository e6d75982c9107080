"""A grammar as the scheduler and the runner know it: something that says which tokens may come next.

It stands behind the committed tokens of one answer and moves only when one is committed. Candidates are tried and taken
back within one call, so rolling candidates back needs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Grammar(Protocol):
    """One answer's grammar."""

    def commit(self, token_id: int) -> None:
        """One more committed token."""
        ...

    def restart(self) -> None:
        """Back to the beginning of the answer."""
        ...

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these may follow one another behind the committed tokens."""
        ...

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        """Which tokens may come behind the committed tokens and the candidates, for the last num_masks of the
        len(candidates) + 1 places: behind none of them, behind the first, and so on.

        A mask is little-endian bits, bit i for token i. All zeros: nothing may come, and `problem` says why. None: the
        candidates before this place are invalid already, so whatever comes will be dropped with them.
        """
        ...

    @property
    def problem(self) -> str | None:
        """Why the grammar cannot go on, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Constraint:
    """The grammar of a span and the candidates up to the span's last row."""

    grammar: Grammar
    candidates: tuple[int, ...]
