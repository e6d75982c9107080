"""What a grammar has found behind an answer's committed tokens, along the candidates that were tried last.

A mask is a function of the tokens before it, so it is found once: fast passes ask behind one candidate more each time, and
the window that judges them has every mask already. The invariant: what is known is of the committed tokens and `ids`.
What was found behind a candidate that is not committed in the end is forgotten and counts for nothing, a failure and the
time it took included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class MaskCache:
    """masks and seconds are by place: behind none of the ids, behind the first, and so on. A failure is behind them all."""

    ids: list[int] = field(default_factory=list)
    masks: dict[int, bytes] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # the candidate's taking included
    failure: str | None = None

    def commit(self, token_id: int) -> float:
        """One more committed token. Returns how long the place before it took."""
        seconds = self.seconds.get(0, 0.0)
        if self.ids[:1] == [token_id]:
            self.ids.pop(0)
            self.masks = {place - 1: mask for place, mask in self.masks.items() if place}
            self.seconds = {place - 1: took for place, took in self.seconds.items() if place}
        else:
            self.ids, self.masks, self.seconds, self.failure = [], {}, {}, None
        return seconds

    def turn_to(self, candidates: Sequence[int]) -> None:
        """Forget what is not of these candidates, nor behind them."""
        num_same = 0
        for known, other in zip(self.ids, candidates, strict=False):
            if known != other:
                break
            num_same += 1
        if num_same == min(len(self.ids), len(candidates)):
            return
        self.ids, self.failure = self.ids[:num_same], None
        self.masks = {place: mask for place, mask in self.masks.items() if place <= num_same}
        self.seconds = {place: took for place, took in self.seconds.items() if place <= num_same}

    def fail(self, ids: Sequence[int], reason: str) -> None:
        """Behind these, which are candidates turned to, nothing may come."""
        place = len(ids)
        self.ids, self.failure = list(ids), reason
        self.masks = {at: mask for at, mask in self.masks.items() if at < place}
        self.seconds = {at: took for at, took in self.seconds.items() if at < place}

    def has(self, place: int) -> bool:
        """Whether there is nothing left to find there."""
        return place in self.masks or (self.failure is not None and place >= len(self.ids))

    def fails_at(self, place: int) -> bool:
        return self.failure is not None and place == len(self.ids)
