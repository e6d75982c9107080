"""Predicts the thought after a chunk from the thoughts before it.

A pass computes the thought after each of its chunks, given what was guessed for the chunks before, right
or wrong. If a thought says all that matters about the past, as the side of a coin does, this is knowledge
about the chunk, and chunks that agree once may agree again:

    chunk 5, seen twice:    after heads it thought tails, after tails heads
    chunk 9, seen once:     after heads it thought tails          so after tails it may think heads

A prediction decides nothing: the next pass verifies it.
"""

from collections.abc import Sequence

from holdfast.core.results import ThoughtIds


class ThoughtPredictor:
    """Predicts for the chunks of one request. "Previous" is the last non-trivial thought before a chunk,
    or ()."""

    def __init__(self) -> None:
        # chunk: {previous: thought}, the latest last
        self._seen: dict[int, dict[ThoughtIds, ThoughtIds]] = {}
        # (previous a, thought b, previous c): thought d. A chunk that thinks b after a thinks d after c.
        self._analogies: dict[tuple[ThoughtIds, ThoughtIds, ThoughtIds], ThoughtIds] = {}

    def learn(
        self,
        first_chunk: int,
        previous: ThoughtIds,
        guesses: Sequence[ThoughtIds],
        thoughts: Sequence[ThoughtIds],
    ) -> None:
        """Learn what a pass computed after each chunk from `first_chunk` on. guesses: what it assumed there."""
        for number, thought in enumerate(thoughts):
            seen = self._seen.setdefault(first_chunk + number, {})
            seen.pop(previous, None)
            for other_previous, other_thought in seen.items():
                self._analogies[other_previous, other_thought, previous] = thought
                self._analogies[previous, thought, other_previous] = other_thought
            seen[previous] = thought
            if number < len(guesses):
                previous = guesses[number] or previous

    def predict(self, chunk: int, previous: ThoughtIds) -> ThoughtIds | None:
        """Return what is predicted, or None. The first of these that is known:

        what the chunk thought after the same previous thought
        what another chunk did that agreed with it otherwise
        the trivial thought, if the chunk never thought anything else
        """
        seen = self._seen.get(chunk, {})
        if previous in seen:
            return seen[previous]
        for other_previous, other_thought in reversed(seen.items()):
            thought = self._analogies.get((other_previous, other_thought, previous))
            if thought is not None:
                return thought
        return None if any(seen.values()) or not seen else ()

    def forget(self, chunk: int) -> None:
        """Forget a chunk: its thought is committed and needs no prediction."""
        self._seen.pop(chunk, None)
