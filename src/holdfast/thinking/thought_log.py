"""The thoughts of one request in a model that thinks: guessed, computed, committed.

Chunk k is positions k c .. (k + 1) c - 1. The thought after it affects all later tokens. A pass
that continues after the end of a chunk guesses the chunk's thought: what `ThoughtPredictor`
predicts, or what the last pass computed there, at first the trivial thought. The pass then computes
the true thoughts, which verify the guesses, as for tokens: the tokens up to the end of the first
chunk with a wrong guess are valid, the others are discarded.

    tokens    c0 c0 | c1 c1 | c2 c2 | c3       guesses after c0, c1, c2:  -   -   -
    thought       -      tails    heads        c1's was wrong: c0 and c1 are valid, the next pass starts with c2

A thought is committed when the tokens of its chunk are. Only then is it sent, once.
"""

from collections.abc import Callable, Iterator, Sequence

from holdfast.core.step_plan import Span, ThinkRule, ThoughtIds
from holdfast.thinking.resets import find_resets
from holdfast.thinking.thought_predictor import ThoughtPredictor

# Thoughts that a pass guesses while it is unknown how often guesses are right. The pass reads one
# chunk more, so repeated doubling gives passes of 16, 32, 64 chunks, whose tokens fill certified
# batch sizes.
FIRST_GUESSES = 15
MAX_GUESSES = (1 << 12) - 1


class ThoughtLog:
    """The thoughts of one request, by chunk."""

    def __init__(
        self,
        chunk_len: int,
        rule: ThinkRule,
        *,
        confirms: bool,
        max_guesses: int = MAX_GUESSES,
        reset_ids: tuple[int, ...] = (),
        read_len: int = 0,
    ) -> None:
        """confirms: thoughts that were sent must come out again when they are computed again. reset_ids end a
        carried state, in the first read_len tokens."""
        self.rule = rule
        self._reset_ids = reset_ids
        self._read_len = self._num_searched = read_len
        self._own_from: int | None = None  # position of a state that another request would end
        self._chunk_len = chunk_len
        self._confirms = confirms
        self._latest: dict[int, ThoughtIds] = {}  # computed last, or adopted
        self._predictor = ThoughtPredictor()
        self._last_committed: ThoughtIds = ()  # the last committed thought that is not trivial
        self._sent: list[ThoughtIds] = []  # one for each chunk
        self._num_committed = 0  # chunks
        self._num_unconfirmed = 0  # chunks
        self._guess_limit = FIRST_GUESSES
        self._max_guesses = max_guesses

    @property
    def is_shared(self) -> bool:
        """Whether its states depend on its tokens alone, so that requests with the same tokens can
        share pages."""
        return not self.rule.forced

    @property
    def has_unconfirmed(self) -> bool:
        """Whether thoughts that were sent are not confirmed yet."""
        return self._num_committed < self._num_unconfirmed

    def restore(self, thoughts: Sequence[ThoughtIds]) -> None:
        """Another engine sent these, after chunks 0, 1, 2, ... They are the best guesses."""
        self._sent = list(thoughts)
        self._latest.update(enumerate(thoughts))
        self._guess_limit = max(self._guess_limit, len(thoughts))
        if self._confirms:
            self._num_unconfirmed = len(thoughts)

    # Guesses

    def max_stop(self, start: int, stop: int, *, is_window: bool = False) -> int:
        """Where a span from start ends, at stop at the latest: it may depend on a limited number of
        guesses without a prediction. A window is not limited by that: the fast passes before it
        computed its thoughts."""
        stop = min(stop, (start // self._chunk_len + 1 + self._max_guesses) * self._chunk_len)
        if is_window:
            return stop
        num_left = self._guess_limit
        for chunk, _, is_predicted in self._guess_chunks(start, stop):
            num_left -= not is_predicted
            if num_left < 0:
                return (chunk + 1) * self._chunk_len
        return stop

    def guesses(self, start: int, stop: int) -> tuple[ThoughtIds, ...]:
        """One for each chunk that ends in start .. stop - 1 with more tokens after it."""
        return tuple(guess for _, guess, _ in self._guess_chunks(start, stop))

    def _guess_chunks(self, start: int, stop: int) -> Iterator[tuple[int, ThoughtIds, bool]]:
        """Each of those chunks, its guess, and whether the guess is predicted or forced."""
        chunks = range(start // self._chunk_len, (stop - 1) // self._chunk_len)
        previous = self._previous(chunks[0]) if chunks else ()
        for chunk in chunks:
            guess, is_predicted = self._guess(chunk, previous)
            yield chunk, guess, is_predicted
            previous = guess or previous

    def _guess(self, chunk: int, previous: ThoughtIds) -> tuple[ThoughtIds, bool]:
        if not self.rule.thinks(chunk, self._chunk_len):
            return (), True
        forced = self.rule.forced_on(chunk)
        if forced is not None:
            return forced, True
        predicted = self._predictor.predict(chunk, previous)
        return (self._latest.get(chunk, ()), False) if predicted is None else (predicted, True)

    def _previous(self, chunk: int) -> ThoughtIds:
        """The last non-trivial thought before a chunk."""
        num_committed = self._num_committed if chunk >= self._num_committed else 0
        for before in range(chunk - 1, num_committed - 1, -1):
            if self._latest.get(before):
                return self._latest[before]
        return self._last_committed if num_committed else ()

    # What a pass returned

    def num_valid_tokens(self, span: Span, thoughts: Sequence[ThoughtIds]) -> int:
        """The tokens of the span up to the first wrong guess, by the thoughts that the pass
        computed."""
        num_right = _num_right(span, thoughts)
        if num_right == len(span.guesses):
            return span.num_tokens
        return (span.start // self._chunk_len + 1 + num_right) * self._chunk_len - span.start

    def update(self, span: Span, thoughts: Sequence[ThoughtIds]) -> int:
        """Take the thoughts that a pass computed after each chunk that ends in the span. Returns
        the number of right guesses."""
        first_chunk = span.start // self._chunk_len
        num_right = _num_right(span, thoughts)
        if thoughts:
            self._predictor.learn(first_chunk, self._previous(first_chunk), span.guesses, thoughts)
        self._latest.update(enumerate(thoughts, first_chunk))
        if span.guesses:
            self._guess_limit = adapt_guesses(self._guess_limit, num_right, len(span.guesses))
        return num_right

    def commit(self, length: int) -> tuple[tuple[tuple[int, ThoughtIds], ...], bool]:
        """Positions 0 .. length - 1 are committed. Returns the new thoughts as (chunk, thought),
        and whether the others are the ones that were sent."""
        new: list[tuple[int, ThoughtIds]] = []
        is_same = True
        for chunk in range(self._num_committed, length // self._chunk_len):
            thought = self._latest.get(chunk, ())
            self._last_committed = thought or self._last_committed
            self._predictor.forget(chunk)
            if chunk < len(self._sent):
                is_same &= thought == self._sent[chunk]
                continue
            self._sent.append(thought)
            if self.rule.thinks(chunk, self._chunk_len):
                new.append((chunk, thought))
        self._num_committed = max(self._num_committed, length // self._chunk_len)
        if not self.has_unconfirmed:
            self._num_unconfirmed = 0
        return tuple(new), is_same or not self._confirms

    # Pages

    def shared_len(self, length: int, tokens: Callable[[int, int], Sequence[int]]) -> int:
        """How many of the first positions are the same for every request with these tokens. tokens: those
        from one position to another."""
        if not self.is_shared:
            return 0
        if self.rule.until is not None:
            return min(length, self.rule.until)
        return length if not self._reset_ids else min(length, self._reset_in_answer(length, tokens))

    def _reset_in_answer(self, length: int, tokens: Callable[[int, int], Sequence[int]]) -> int:
        """The first chunk whose state ends in a request that reads the answer as a part of its prompt."""
        if self._own_from is None and length > self._num_searched:
            start = max(0, self._num_searched + 1 - len(self._reset_ids))
            found = find_resets(tokens(start, length), self._reset_ids, self._num_searched - start)
            self._num_searched = length
            if found:
                self._own_from = (start + found[0]) // self._chunk_len * self._chunk_len
        return length if self._own_from is None else self._own_from

    def of_pages(self, start: int, stop: int) -> tuple[ThoughtIds, ...]:
        """The thoughts after the chunks of whole pages."""
        return tuple(
            self._latest.get(chunk, ()) for chunk in range(start // self._chunk_len, stop // self._chunk_len)
        )

    def adopt(self, thoughts: Sequence[ThoughtIds]) -> None:
        """Start, or restart, after cached pages with these thoughts."""
        self._latest.update(enumerate(thoughts))

    def restart(self) -> None:
        """All tokens are computed again. The thoughts so far are the best guesses."""
        self._num_committed = 0
        self._last_committed = ()
        self._guess_limit = max(self._guess_limit, len(self._sent))
        self._num_searched, self._own_from = self._read_len, None

    def unconfirm(self) -> None:
        """All thoughts that were sent must be confirmed."""
        self._num_unconfirmed = len(self._sent)


def adapt_guesses(limit: int, num_right: int, num_guessed: int) -> int:
    """How many thoughts the next pass may guess, so that it reads twice as many chunks as were
    valid, and no fewer than before if all were.

    At least one, even if guesses are nearly always wrong: a pass costs more than the tokens of a
    chunk.
    """
    twice = 2 * (num_right + 1) - 1
    return min(MAX_GUESSES, twice if num_right < num_guessed else max(limit, twice))


def _num_right(span: Span, thoughts: Sequence[ThoughtIds]) -> int:
    """How many guesses of the span come before the first wrong one."""
    num_right = 0
    while num_right < len(span.guesses) and span.guesses[num_right] == thoughts[num_right]:
        num_right += 1
    return num_right
