"""What a canonical pass says of a window.

A window of one committed token and n candidates gives n + 1 canonical tokens c1 .. cn+1, one behind each row. With
a the number of leading candidates that equal theirs, the verdict commits c1 .. ca+1: a accepted candidates and exactly
one canonical token, the correction if a < n, the bonus if a = n. So every canonical pass makes progress.

    rows         T0   T1'  T2'  T3'
    canonical    T1   T2   T3   T4      T1 = T1', T2 != T2': accepted 1, commit T1 T2, dropped 2 (T2', T3')
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """accepted + dropped = the number of candidates; accepted + 1 tokens are committed."""

    accepted: int
    dropped: int

    @property
    def num_committed(self) -> int:
        return self.accepted + 1

    @property
    def is_rollback(self) -> bool:
        return self.dropped > 0


def judge(candidates: Sequence[int], canonical: Sequence[int]) -> Verdict:
    """Compare candidates with the canonical tokens of their window."""
    assert len(canonical) == len(candidates) + 1, (
        "a window gives one canonical token more than it has candidates"
    )
    accepted = 0
    for candidate, decided in zip(candidates, canonical, strict=False):
        if candidate != decided:
            break
        accepted += 1
    return Verdict(accepted, len(candidates) - accepted)
