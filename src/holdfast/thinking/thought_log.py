"""What a sequence of a thinking model has thought, and what it is taken to think next.

Chunk k is the positions k c .. (k + 1) c - 1; the thought behind it decides all rows behind it. A pass whose rows go on
behind the end of a chunk takes a thought for granted there: what the chunk's hunch says (`hunches.py`), or what any pass
found there last, at first the trivial one. What the pass itself finds is the verdict, as for tokens: rows up to the end of
the first chunk whose guess was wrong stand, the others never were.

    rows      c0 c0 | c1 c1 | c2 c2 | c3       guesses behind c0, c1, c2:  -   -   -
    thought       -      tails    heads        c1's was wrong: c0 and c1 stand, and the next pass begins with c2

A thought is settled when the rows of its chunk are; only then is it told, once.
"""

from collections.abc import Iterator, Sequence

from holdfast.core.step_plan import Span, ThinkRule, ThoughtIds
from holdfast.thinking.thought_predictor import ThoughtPredictor

# Thoughts a pass takes for granted, before it is known how often they are right. It reads a chunk more: twice as many
# again and again, these are passes of 16, 32, 64 chunks, whose rows fill totals that are certified.
FIRST_GUESSES = 15
MOST_GUESSES = (1 << 12) - 1


class ThoughtLog:
    """The thoughts of one sequence."""

    def __init__(
        self, chunk: int, rule: ThinkRule, *, confirms: bool, max_guesses: int = MOST_GUESSES
    ) -> None:
        """confirms: whether what was told must come out again where it is computed again."""
        self.rule = rule
        self._chunk = chunk
        self._confirms = confirms
        self._latest: dict[int, ThoughtIds] = {}  # what was found last, or adopted
        self._hunches = ThoughtPredictor()
        self._behind_settled: ThoughtIds = ()  # the last settled thought that says anything
        self._told: list[ThoughtIds] = []  # a chunk each
        self._num_settled = 0  # chunks
        self._num_doubted = 0  # chunks
        self._most_guesses = FIRST_GUESSES
        self._max_guesses = max_guesses

    @property
    def is_shared(self) -> bool:
        """Whether its states depend on its tokens alone, so that others may read its pages and it theirs."""
        return not self.rule.forced

    @property
    def is_doubted(self) -> bool:
        """Whether something told is not confirmed yet."""
        return self._num_settled < self._num_doubted

    def reach(self, start: int, stop: int, *, is_window: bool = False) -> int:
        """Where a span from start on ends, at stop at the latest: not too many guesses at random hang on one another. A
        window's are those the passes before it found."""
        stop = min(stop, (start // self._chunk + 1 + self._max_guesses) * self._chunk)
        if is_window:
            return stop
        left = self._most_guesses
        for chunk, _, is_sure in self._expect(start, stop):
            left -= not is_sure
            if left < 0:
                return (chunk + 1) * self._chunk
        return stop

    def shared_len(self, length: int) -> int:
        """So many of the first positions are the same for everybody who has these tokens."""
        if not self.is_shared:
            return 0
        return length if self.rule.until is None else min(length, self.rule.until)

    def guesses(self, start: int, stop: int) -> tuple[ThoughtIds, ...]:
        """Behind each chunk that ends in start .. stop - 1 with more rows behind it."""
        return tuple(guess for _, guess, _ in self._expect(start, stop))

    def _expect(self, start: int, stop: int) -> Iterator[tuple[int, ThoughtIds, bool]]:
        """Each of those chunks, the guess, and whether there is a reason for it."""
        chunks = range(start // self._chunk, (stop - 1) // self._chunk)
        behind = self._behind(chunks[0]) if chunks else ()
        for chunk in chunks:
            guess, is_sure = self._guess(chunk, behind)
            yield chunk, guess, is_sure
            behind = guess or behind

    def _guess(self, chunk: int, behind: ThoughtIds) -> tuple[ThoughtIds, bool]:
        if not self.rule.thinks(chunk, self._chunk):
            return (), True
        forced = self.rule.forced_on(chunk)
        if forced is not None:
            return forced, True
        hunch = self._hunches.guess(chunk, behind)
        return (self._latest.get(chunk, ()), False) if hunch is None else (hunch, True)

    def _behind(self, chunk: int) -> ThoughtIds:
        """The last thought before a chunk that says anything."""
        settled = self._num_settled if chunk >= self._num_settled else 0
        for before in range(chunk - 1, settled - 1, -1):
            if self._latest.get(before):
                return self._latest[before]
        return self._behind_settled if settled else ()

    def judge(self, span: Span, found: Sequence[ThoughtIds]) -> int:
        """What a pass found behind each chunk that ends in the span: so many of its guesses were right."""
        first = span.start // self._chunk
        right = 0
        while right < len(span.guesses) and span.guesses[right] == found[right]:
            right += 1
        if found:
            self._hunches.learn(first, self._behind(first), span.guesses, found)
        self._latest.update(enumerate(found, first))
        if span.guesses:
            self._most_guesses = adapt_guesses(self._most_guesses, right, len(span.guesses))
        return right

    def stands(self, span: Span, right: int) -> int:
        """Where the rows end that stand after so many right guesses."""
        return (
            span.stop if right == len(span.guesses) else (span.start // self._chunk + 1 + right) * self._chunk
        )

    def of_pages(self, start: int, stop: int) -> tuple[ThoughtIds, ...]:
        """The thoughts behind the chunks of whole pages."""
        return tuple(
            self._latest.get(chunk, ()) for chunk in range(start // self._chunk, stop // self._chunk)
        )

    def adopt(self, thoughts: Sequence[ThoughtIds]) -> None:
        """Start, or start again, behind pages whose chunks were thought about by others."""
        self._latest.update(enumerate(thoughts))

    def settle(self, length: int) -> tuple[tuple[tuple[int, ThoughtIds], ...], bool]:
        """Rows 0 .. length - 1 are settled. What is new, as (chunk, thought); and whether all else is as it was told."""
        new: list[tuple[int, ThoughtIds]] = []
        same = True
        for chunk in range(self._num_settled, length // self._chunk):
            thought = self._latest.get(chunk, ())
            self._behind_settled = thought or self._behind_settled
            self._hunches.forget(chunk)
            if chunk < len(self._told):
                same &= thought == self._told[chunk]
                continue
            self._told.append(thought)
            if self.rule.thinks(chunk, self._chunk):
                new.append((chunk, thought))
        self._num_settled = max(self._num_settled, length // self._chunk)
        if not self.is_doubted:
            self._num_doubted = 0
        return tuple(new), same or not self._confirms

    def start_again(self) -> None:
        """All rows are computed again. What was thought so far is the best guess."""
        self._num_settled = 0
        self._behind_settled = ()
        self._most_guesses = max(self._most_guesses, len(self._told))

    def doubt(self) -> None:
        """All that was told must be confirmed."""
        self._num_doubted = len(self._told)


def adapt_guesses(most: int, right: int, guessed: int) -> int:
    """How many thoughts the next pass may take for granted, so that it reads twice as many chunks as stood, and no fewer
    where all did.

    At least one, even where it nearly always falls: a pass costs more than the rows of a chunk.
    """
    twice = 2 * (right + 1) - 1
    return min(MOST_GUESSES, twice if right < guessed else max(most, twice))
