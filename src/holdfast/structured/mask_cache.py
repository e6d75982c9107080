"""The masks a grammar has computed after an answer's committed tokens, along the candidates tried
last.

A mask is a function of the tokens before it, so it is computed once: each fast pass needs the mask
after one candidate more, and the verification window finds all of them here.

    committed tokens | ids[0]   ids[1]   ids[2]
                     ^        ^        ^        ^
    position         0        1        2        3        masks[p]: what may come at position p

The invariant: every entry belongs to the committed tokens followed by `ids`. Entries after a
candidate that is not committed in the end are dropped, a failure and its time included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class MaskCache:
    """Masks and their seconds, by position. `failure`: why nothing may come after `ids`."""

    ids: list[int] = field(default_factory=list)
    masks: dict[int, bytes] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # the time to consume the candidate included
    failure: str | None = None

    def commit(self, token_id: int) -> float:
        """Move past one more committed token. Returns the seconds its position took."""
        seconds = self.seconds.get(0, 0.0)
        if self.ids[:1] == [token_id]:
            self.ids.pop(0)
            self.masks = {position - 1: mask for position, mask in self.masks.items() if position}
            self.seconds = {position - 1: took for position, took in self.seconds.items() if position}
        else:
            self.ids, self.masks, self.seconds, self.failure = [], {}, {}, None
        return seconds

    def switch_to(self, candidates: Sequence[int]) -> None:
        """Drop the entries after the longest common prefix of `ids` and these candidates."""
        num_same = 0
        for known, other in zip(self.ids, candidates, strict=False):
            if known != other:
                break
            num_same += 1
        if num_same == min(len(self.ids), len(candidates)):
            return
        self.ids, self.failure = self.ids[:num_same], None
        self.masks = {position: mask for position, mask in self.masks.items() if position <= num_same}
        self.seconds = {position: took for position, took in self.seconds.items() if position <= num_same}

    def fail(self, ids: Sequence[int], reason: str) -> None:
        """Nothing may come after `ids`, a prefix of the current candidates."""
        end = len(ids)
        self.ids, self.failure = list(ids), reason
        self.masks = {position: mask for position, mask in self.masks.items() if position < end}
        self.seconds = {position: took for position, took in self.seconds.items() if position < end}

    def has(self, position: int) -> bool:
        """Return whether nothing is left to compute at this position."""
        return position in self.masks or (self.failure is not None and position >= len(self.ids))

    def fails_at(self, position: int) -> bool:
        return self.failure is not None and position == len(self.ids)
