"""The thoughts of one request in a model that thinks: guessed, computed, committed.

Chunk k is positions k c .. (k + 1) c - 1. The thought after it affects all later tokens. A pass
that continues after the end of a chunk guesses the chunk's thought: what `ThoughtPredictor`
predicts, or what the last pass computed there, at first the trivial thought. The pass then computes
the true thoughts, which verify the guesses, as for tokens: the tokens up to the end of the first
chunk with a wrong guess are valid, the others are discarded.

    tokens    c0 c0 | c1 c1 | c2 c2 | c3       guesses after c0, c1, c2:  -   -   -
    thought       -      tails    heads        c1's was wrong: c0 and c1 are valid, the next pass starts with c2

A thought is committed when the tokens of its chunk are. Only then is it sent, once.

A chunk is closed when it is full. In a model that settles, the chunk with the last token of the prompt is closed
before that token, which reads its state and so does the answer: the rest of this chunk, and the next.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.request import Request
from holdfast.core.results import Thought, ThoughtIds
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.core.step_plan import Span
from holdfast.errors import InvalidRequest
from holdfast.scheduler.extension import TokensOf
from holdfast.thinking.predictor import ThoughtPredictor

if TYPE_CHECKING:
    from holdfast.text.tokenizer import Tokenizer

SHOWN_TOKENS = 240  # the last ones, whose chunks a page shows
# Thoughts that a pass guesses while it is unknown how often guesses are right. It reads one chunk more, so
# repeated doubling gives passes of 16, 32, 64 chunks, whose tokens fill certified batch sizes.
FIRST_GUESSES = 15
MAX_GUESSES = (1 << 12) - 1


@dataclass(frozen=True, slots=True)
class ThinkRule:
    """Which chunks of a request are thought about. All spans of a request share one object.

    until    only chunks that end at this position or before; None: all
    forced   thoughts that replace the model's own, as (chunk, thought), sorted by chunk
    resets   chunks after which a carried state ends
    settled  the last position of the prompt if the chunk with it is closed before it; None: all chunks get full
    """

    until: int | None = None
    forced: tuple[tuple[int, ThoughtIds], ...] = ()
    resets: frozenset[int] = frozenset()
    settled: int | None = None

    def num_closed(self, length: int, chunk_len: int) -> int:
        """Return how many chunks are closed after `length` tokens."""
        if self.settled is None or length < self.settled:
            return length // chunk_len
        return max(length, self.settled + chunk_len) // chunk_len

    def end(self, chunk: int, chunk_len: int) -> int:
        """Return after how many tokens a chunk is closed."""
        if self.settled is not None and chunk == self.settled // chunk_len:
            return self.settled
        return (chunk + 1) * chunk_len

    def thinks(self, chunk: int, chunk_len: int) -> bool:
        return self.until is None or self.end(chunk, chunk_len) <= self.until

    def forced_on(self, chunk: int) -> ThoughtIds | None:
        at = bisect_left(self.forced, chunk, key=itemgetter(0))
        found = at < len(self.forced) and self.forced[at][0] == chunk
        return self.forced[at][1] if found else None


class SpanThoughts(NamedTuple):
    """`Span.extra`. guesses: what is assumed after each chunk that ends in the span with tokens after it."""

    rule: ThinkRule
    guesses: tuple[ThoughtIds, ...] = ()


class ShownChunk(NamedTuple):
    """A chunk as a page draws it, positions first .. end - 1. thought: None if there is none yet. has_state: whether
    its tokens add a state. wrong: the guess that the last pass found wrong."""

    number: int
    first: int
    end: int
    thought: ThoughtIds | None
    is_committed: bool
    has_state: bool
    wrong: ThoughtIds | None


@dataclass(frozen=True)
class ThoughtLogs:
    """Makes the thought log of each request, with settings of `ThinkingConfig`. max_guesses: thoughts that a
    pass may guess; with 0 a pass reads one chunk."""

    chunk_len: int
    while_answering: bool = True
    reset_ids: tuple[int, ...] = ()
    settle: bool = False
    carry: bool = False
    max_guesses: int = MAX_GUESSES

    def __call__(self, request: Request) -> "ThoughtLog":
        """Make the thought log of a request. With think=False none of its chunks is thought about."""
        read_len = _read_len(request)
        rule = self._rule(request.params, read_len)
        resets = find_resets(request.prompt_ids[: rule.settled or read_len], self.reset_ids)
        rule = replace(rule, resets=frozenset(at // self.chunk_len for at in resets))
        return ThoughtLog(self, rule, confirms=request.deterministic, read_len=read_len)

    def _rule(self, params: SamplingParams, read_len: int) -> ThinkRule:
        """Return the rule of a request whose prompt has `read_len` tokens, without resets."""
        if not params.think:
            return ThinkRule(0)
        settled = find_settled(read_len, self.chunk_len) if self.settle else None
        return ThinkRule(None if self.while_answering else read_len, params.forced, settled=settled)

    def decode(self, item: Any, request: Request, tokenizer: "Tokenizer") -> Thought:
        """Decode an item of `ThoughtLog.commit`."""
        chunk, token_ids = item
        # A model may have more ids than its tokenizer; the ids above have no text.
        known = [token_id for token_id in token_ids if token_id < tokenizer.vocab_size]
        end = self._rule(request.params, _read_len(request)).end(chunk, self.chunk_len)
        return Thought(chunk, end - 1, tokenizer.decode(known).strip(), token_ids)

    def of_receipt(
        self,
        kept: Iterable[tuple[int, ThoughtIds]],
        params: SamplingParams,
        prompt_len: int,
        num_tokens: int,
    ) -> list[ThoughtIds]:
        """Return the thoughts after chunks 0, 1, 2, ... of an answer with `num_tokens` tokens, trivial ones,
        which a receipt leaves out, included. If there is no token, later thoughts than its are not known."""
        given = dict(kept)
        num_known = max(given, default=-1) + 1
        rule = self._rule(params, prompt_len)
        # The last token of an answer is in no chunk: its KV was not computed.
        chunks = range(rule.num_closed(prompt_len + max(1, num_tokens) - 1, self.chunk_len))
        num_thoughts = sum(rule.thinks(chunk, self.chunk_len) for chunk in chunks)
        if num_known > num_thoughts:
            raise InvalidRequest(
                f"the receipt has a thought after chunk {max(given)}, but {num_thoughts} chunks of its answer are "
                "thought about"
            )
        return [given.get(chunk, ()) for chunk in range(num_thoughts if num_tokens else num_known)]

    def guessing(self, most: int | None) -> "ThoughtLogs":
        """Return logs with passes that guess at most so many thoughts, None: as many as now."""
        return self if most is None else replace(self, max_guesses=most)


class ThoughtLog:
    """The thoughts of one request, by chunk."""

    def __init__(self, logs: ThoughtLogs, rule: ThinkRule, *, confirms: bool, read_len: int = 0) -> None:
        """confirms: thoughts that were sent must come out again. read_len: tokens in which a carried state may
        end."""
        self.rule = rule
        self._no_guesses = SpanThoughts(rule)
        self._chunk_len, self._reset_ids, self._max_guesses = logs.chunk_len, logs.reset_ids, logs.max_guesses
        self._carry = logs.carry
        self._read_len = self._num_searched = read_len
        self._own_from: int | None = None  # position of a state that another request would end
        self._confirms = confirms
        self._latest: dict[int, ThoughtIds] = {}  # computed last, or adopted
        self._wrong: dict[int, ThoughtIds] = {}  # the first wrong guess of the last pass
        self._predictor = ThoughtPredictor()
        self._last_committed: ThoughtIds = ()  # the last committed thought that is not trivial
        self._sent: list[ThoughtIds] = []  # one for each chunk
        self._num_committed = 0  # chunks
        self._num_unconfirmed = 0  # chunks
        self._guess_limit = FIRST_GUESSES

    @property
    def has_unconfirmed(self) -> bool:
        return self._num_committed < self._num_unconfirmed

    def restore(self, sent: Sent) -> None:
        """Take the thoughts that another engine sent as the best guesses."""
        thoughts = sent.thoughts  # after chunks 0, 1, 2, ...
        self._sent = list(thoughts)
        self._latest.update(enumerate(thoughts))
        self._guess_limit = max(self._guess_limit, len(thoughts))
        if self._confirms:
            self._num_unconfirmed = len(thoughts)

    # Guesses

    def limit(self, start: int, stop: int, *, is_window: bool = False) -> int:
        """Return where a span from `start` must end. It may rest on at most `max_guesses` guesses and, if it is
        no window, on at most `_guess_limit` that nothing predicts."""
        stop = min(stop, self._end(self._num_closed(start) + self._max_guesses))
        if is_window:
            return stop
        num_left = self._guess_limit
        for chunk, _, is_predicted in self._guess_chunks(start, stop):
            num_left -= not is_predicted
            if num_left < 0:
                return self._end(chunk)
        return stop

    def guess(self, start: int, stop: int) -> SpanThoughts:
        """Guess a thought for each chunk that is closed in start .. stop - 1 with more tokens after it."""
        if self._num_closed(start) == self._num_closed(stop - 1):
            return self._no_guesses
        return SpanThoughts(self.rule, tuple(guess for _, guess, _ in self._guess_chunks(start, stop)))

    def _guess_chunks(self, start: int, stop: int) -> Iterator[tuple[int, ThoughtIds, bool]]:
        """Yield each chunk, its guess, and whether the guess is predicted or determined."""
        chunks = range(self._num_closed(start), self._num_closed(stop - 1))
        previous = self._previous(chunks[0]) if chunks else ()
        for chunk in chunks:
            known = self.rule.forced_on(chunk) if self.rule.thinks(chunk, self._chunk_len) else ()
            if known is None:
                known = self._predictor.predict(chunk, previous)
            guess = self._latest.get(chunk, ()) if known is None else known
            yield chunk, guess, known is not None
            previous = guess or previous

    def _previous(self, chunk: int) -> ThoughtIds:
        """Return the last non-trivial thought before a chunk."""
        num_committed = self._num_committed if chunk >= self._num_committed else 0
        for before in range(chunk - 1, num_committed - 1, -1):
            if self._latest.get(before):
                return self._latest[before]
        return self._last_committed if num_committed else ()

    def _num_closed(self, length: int) -> int:
        return self.rule.num_closed(length, self._chunk_len)

    def _end(self, chunk: int) -> int:
        return self.rule.end(chunk, self._chunk_len)

    # What a pass returned

    def num_valid(self, span: Span, thoughts: Sequence[ThoughtIds]) -> int:
        """Return the number of tokens up to the first wrong guess."""
        guesses = guesses_of(span)
        num_right = _num_right(guesses, thoughts)
        if num_right == len(guesses):
            return span.num_tokens
        return self._end(self._num_closed(span.start) + num_right) - span.start

    def update(self, span: Span, thoughts: Sequence[ThoughtIds]) -> tuple[int, int]:
        """Take the thoughts that a pass computed. Return the number of guesses, and of the right ones."""
        first_chunk, guesses = self._num_closed(span.start), guesses_of(span)
        num_right = _num_right(guesses, thoughts)
        if thoughts:
            self._predictor.learn(first_chunk, self._previous(first_chunk), guesses, thoughts)
        self._latest.update(enumerate(thoughts, first_chunk))
        self._wrong = {first_chunk + num_right: guesses[num_right]} if num_right < len(guesses) else {}
        if guesses:
            self._guess_limit = adapt_guesses(self._guess_limit, num_right, len(guesses))
        return self._num_thinking(first_chunk, len(guesses)), self._num_thinking(first_chunk, num_right)

    def _num_thinking(self, first: int, count: int) -> int:
        """Return how many of `count` chunks get a thought from T or from the client."""
        return sum(self.rule.thinks(chunk, self._chunk_len) for chunk in range(first, first + count))

    def commit(self, length: int) -> tuple[tuple[tuple[int, ThoughtIds], ...], bool]:
        """Return the new thoughts of the first positions as (chunk, thought), and whether the others are the
        ones that were sent."""
        new: list[tuple[int, ThoughtIds]] = []
        is_same = True
        num_closed = self._num_closed(length)
        for chunk in range(self._num_committed, num_closed):
            thought = self._latest.get(chunk, ())
            self._last_committed = thought or self._last_committed
            self._predictor.forget(chunk)
            if chunk < len(self._sent):
                is_same &= thought == self._sent[chunk]
                continue
            self._sent.append(thought)
            if self.rule.thinks(chunk, self._chunk_len):
                new.append((chunk, thought))
        self._num_committed = max(self._num_committed, num_closed)
        if not self.has_unconfirmed:
            self._num_unconfirmed = 0
        return tuple(new), is_same or not self._confirms

    def shown(self, length: int) -> tuple[ShownChunk, ...]:
        """Return the chunks of the last of `length` tokens, the one that is not closed included; () if nothing is
        thought about."""
        if self.rule.until == 0:
            return ()
        chunks = range(self._num_closed(max(0, length - SHOWN_TOKENS)), self._num_closed(length) + 1)
        held = self._previous(chunks[0]) if self._carry else self._latest.get(chunks[0] - 1)
        shown = []
        for chunk in chunks:
            thought = self._latest.get(chunk) if self.rule.thinks(chunk, self._chunk_len) else None
            is_committed = chunk < self._num_committed
            first, end = self._end(chunk - 1), self._end(chunk)
            shown.append(
                ShownChunk(chunk, first, end, thought, is_committed, bool(held), self._wrong.get(chunk))
            )
            held = thought or (held if self._carry and chunk not in self.rule.resets else ())
        return tuple(shown)

    # Pages

    def shareable_len(self, length: int, tokens: TokensOf) -> int:
        if self.rule.forced:
            return 0
        if self.rule.settled is not None:
            return min(length, self.rule.settled)
        if self.rule.until is not None:
            return min(length, self.rule.until)
        return length if not self._reset_ids else min(length, self._reset_in_answer(length, tokens))

    def _reset_in_answer(self, length: int, tokens: TokensOf) -> int:
        """Return where the first chunk begins whose state ends if the answer is read as a part of a prompt;
        `length` if there is none."""
        if self._own_from is None and length > self._num_searched:
            start = max(0, self._num_searched + 1 - len(self._reset_ids))
            found = find_resets(tokens(start, length), self._reset_ids, self._num_searched - start)
            self._num_searched = length
            if found:
                self._own_from = (start + found[0]) // self._chunk_len * self._chunk_len
        return length if self._own_from is None else self._own_from

    def of_pages(self, start: int, stop: int) -> tuple[ThoughtIds, ...]:
        """Return the thoughts after the chunks of whole pages."""
        return tuple(
            self._latest.get(chunk, ()) for chunk in range(start // self._chunk_len, stop // self._chunk_len)
        )

    def adopt(self, pages: Sequence[tuple[ThoughtIds, ...]]) -> None:
        self._latest.update(enumerate(chain.from_iterable(pages)))

    def restart(self) -> None:
        """Forget what is committed. The thoughts so far are the best guesses."""
        self._num_committed = 0
        self._last_committed = ()
        self._guess_limit = max(self._guess_limit, len(self._sent))
        self._num_searched, self._own_from = self._read_len, None

    def unconfirm(self) -> None:
        self._num_unconfirmed = len(self._sent)


def adapt_guesses(limit: int, num_right: int, num_guessed: int) -> int:
    """Return how many thoughts the next pass may guess, at least 1: so many that it reads twice as many
    chunks as were valid. If all were valid, the limit does not fall."""
    twice = 2 * (num_right + 1) - 1
    return min(MAX_GUESSES, twice if num_right < num_guessed else max(limit, twice))


def thoughts_of(span: Span) -> SpanThoughts:
    """Return what a span of a thinking model takes for granted."""
    assert isinstance(span.extra, SpanThoughts)
    return span.extra


def guesses_of(span: Span) -> tuple[ThoughtIds, ...]:
    return thoughts_of(span).guesses


def _num_right(guesses: Sequence[ThoughtIds], thoughts: Sequence[ThoughtIds]) -> int:
    """Return how many guesses come before the first wrong one."""
    num_right = 0
    while num_right < len(guesses) and guesses[num_right] == thoughts[num_right]:
        num_right += 1
    return num_right


def _read_len(request: Request) -> int:
    return request.prompt_len if request.read_len is None else request.read_len


def find_settled(prompt_len: int, chunk_len: int) -> int | None:
    """Return the last position of a prompt if a chunk is closed before it that is not full. T reads as many tokens
    as a chunk has: there must be so many before it."""
    last = prompt_len - 1
    return last if last > chunk_len and last % chunk_len else None


def find_resets(ids: Sequence[int], reset_ids: Sequence[int], first: int = 0) -> list[int]:
    """Return the positions of the last tokens of `reset_ids` in `ids`, from position `first` on: where a
    carried state ends, in a prompt. Each message of a chat begins with the same tokens, such as those of
    "<|im_end|>\\n<|im_start|>user"."""
    if not reset_ids:
        return []
    length, last, wanted = len(reset_ids), reset_ids[-1], tuple(reset_ids)
    return [
        at
        for at in range(max(first, length - 1), len(ids))
        if ids[at] == last and tuple(ids[at + 1 - length : at + 1]) == wanted
    ]
