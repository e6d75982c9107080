"""What a chunk is likely to think, judged by what was thought before it.

A pass shows what every chunk of it thinks behind the thoughts it took for granted, the wrong ones, too. Where a thought
says all that matters of the past, as a coin's side does, that is knowledge about the chunk, and what two chunks have in
common may be more of it:

    chunk 5, seen twice:    behind heads it thought tails, behind tails heads
    chunk 9, seen once:     behind heads it thought tails          so behind tails it may think heads

None of this decides anything: a hunch is a guess, and a pass judges it.
"""

from collections.abc import Sequence

from holdfast.core.step_plan import ThoughtIds


class ThoughtPredictor:
    """Of the chunks of one sequence. "Behind" is the last thought before a chunk that says anything, () if none does."""

    def __init__(self) -> None:
        # chunk: {behind: thought}, what was seen last at the end
        self._seen: dict[int, dict[ThoughtIds, ThoughtIds]] = {}
        # (behind a, thought b, behind c): thought d. Who thinks b behind a thinks d behind c.
        self._alike: dict[tuple[ThoughtIds, ThoughtIds, ThoughtIds], ThoughtIds] = {}

    def learn(
        self, first: int, behind: ThoughtIds, guesses: Sequence[ThoughtIds], found: Sequence[ThoughtIds]
    ) -> None:
        """A pass found this in chunks first, first + 1, ..., taking the guesses for granted behind each."""
        for number, thought in enumerate(found):
            self._learn(first + number, behind, thought)
            if number < len(guesses):
                behind = guesses[number] or behind

    def _learn(self, chunk: int, behind: ThoughtIds, thought: ThoughtIds) -> None:
        seen = self._seen.setdefault(chunk, {})
        seen.pop(behind, None)
        for other, its in seen.items():
            self._alike[other, its, behind] = thought
            self._alike[behind, thought, other] = its
        seen[behind] = thought

    def guess(self, chunk: int, behind: ThoughtIds) -> ThoughtIds | None:
        """What it thought behind the same, or what another did that otherwise thought as it did; nothing, if it never thought
        anything. None: no hunch."""
        seen = self._seen.get(chunk, {})
        if behind in seen:
            return seen[behind]
        for other, thought in reversed(seen.items()):
            alike = self._alike.get((other, thought, behind))
            if alike is not None:
                return alike
        return None if any(seen.values()) or not seen else ()

    def forget(self, chunk: int) -> None:
        """Its thought is settled, and no longer guessed."""
        self._seen.pop(chunk, None)
