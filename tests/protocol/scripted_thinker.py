"""The scripted model, thinking: the content of a slot depends on the thought after the chunk before it, too.

A thought is a function of all tokens before it. Its state is kept beside the slots of its chunk and is read through the page
table, as in the real runner, so a stale or foreign state shows in every later answer. A fast pass may be wrong about
thoughts, and so may certified passes from some time on.
"""

import hashlib
from dataclasses import replace

from scripted import (
    EOS,
    START,
    Context,
    ScriptedRunner,
    chain,
    logprob,
    next_token,
)

from holdfast.core.results import ThoughtIds
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, PassResult, Span, TokenLogprob
from holdfast.core.stop_rules import finish_reason
from holdfast.thinking.log import ThinkRule, guesses_of, thoughts_of

Told = list[tuple[int, ThoughtIds]]


def mix(context: Context, thought: ThoughtIds) -> Context:
    """A token after a thought; after the trivial one it is as in a plain model."""
    if not thought:
        return context
    digest = hashlib.blake2b(f"{context[0]}:{thought}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big"), *context[1:]


def think(context: Context) -> ThoughtIds:
    """The thought after a chunk: trivial for every second one."""
    number = context[0] >> 5
    return ((), (), (number % 7,), (number % 5, 1))[number % 4]


class Reading:
    """The definition: one token after the other, a thought when a chunk is full, or the prompt about to end."""

    def __init__(self, chunk: int, rule: ThinkRule) -> None:
        self._chunk, self._rule = chunk, rule
        self._thought: ThoughtIds = ()
        self._length = self._num_closed = 0
        self.context = START
        self.told: Told = []

    def read(self, token_id: int) -> None:
        if self._length == self._rule.settled:
            self._close()
        self.context = mix(chain(self.context, token_id), self._thought)
        self._length += 1
        if self._length == (self._num_closed + 1) * self._chunk:
            self._close()

    def _close(self) -> None:
        number = self._num_closed
        self._num_closed += 1
        self._thought = ()
        if self._rule.thinks(number, self._chunk):
            forced = self._rule.forced_on(number)
            self._thought = think(self.context) if forced is None else forced
            self.told.append((number, self._thought))


def reference(
    prompt: tuple[int, ...], params: SamplingParams, chunk: int, rule: ThinkRule
) -> tuple[tuple[int, ...], Told]:
    """The answer and the thoughts up to its last token, which is not read."""
    reading = Reading(chunk, rule)
    for token_id in prompt if params.max_tokens else prompt[: max(1, len(prompt) - 1)]:
        reading.read(token_id)
    output: list[int] = []
    while len(output) < params.max_tokens:
        output.append(next_token(reading.context))
        if finish_reason(output[-1], len(output), False, params, frozenset({EOS})):
            break
        reading.read(output[-1])
    return tuple(output), reading.told


def reference_scores(
    prompt: tuple[int, ...], score_from: int, chunk: int, rule: ThinkRule
) -> list[TokenLogprob]:
    reading, scores = Reading(chunk, rule), []
    for position, token_id in enumerate(prompt):
        if position >= score_from:
            scores.append(logprob(reading.context, token_id))
        reading.read(token_id)
    return scores


class ScriptedThinker(ScriptedRunner):
    """`thought_error_rate` is the chance that a fast pass is wrong about a thought; from pass number `forgets_from`
    on certified passes are wrong about every one of them, and about nothing else."""

    def __init__(
        self,
        page_size: int,
        error_rate: float,
        seed: int,
        chunk: int,
        *,
        thought_error_rate: float = 0.0,
        forgets_from: int | None = None,
        corrupt_from: int | None = None,
        **rest: object,
    ) -> None:
        super().__init__(page_size, error_rate, seed, corrupt_from=corrupt_from, **rest)  # type: ignore[arg-type]
        self._chunk = chunk
        self._thought_lie = thought_error_rate
        self._forgets_from = forgets_from
        self._states: dict[int, ThoughtIds] = {}  # by the slot where its chunk begins
        self.num_guesses = self.num_wrong = 0

    def _run_pass(self, one: Pass) -> PassResult:
        for span in one.spans:
            self._put_guesses(span)
        result = super()._run_pass(one)
        for span, found in zip(one.spans, result.extra, strict=True):
            guesses = guesses_of(span)
            assert isinstance(found, tuple)
            self.num_guesses += len(guesses)
            self.num_wrong += guesses != found[: len(guesses)]
        return result

    def _put_guesses(self, span: Span) -> None:
        chunks = self._closed(span, span.stop - 1)
        guesses = guesses_of(span)
        assert len(guesses) == len(chunks), "a guess for each chunk with tokens after it"
        for number, guess in zip(chunks, guesses, strict=True):
            self._states[self._slot(span, number * self._chunk)] = guess

    def _next(self, context: Context, token_id: int, span: Span, position: int) -> Context:
        settled = thoughts_of(span).rule.settled
        is_settled = settled is not None and position // self._chunk == settled // self._chunk
        before = position if is_settled and position >= (settled or 0) else position - self._chunk
        context = super()._next(context, token_id, span, position)
        if before < 0:
            return context
        return mix(context, self._states[self._slot(span, before // self._chunk * self._chunk)])

    def _whole(self, span: Span) -> Context:
        reading = Reading(self._chunk, thoughts_of(span).rule)
        for token_id in span.history:
            reading.read(token_id)
        return reading.context

    def _check_what_is_known(self, span: Span) -> None:
        if self._thought_lie == 0 and self._forgets_from is None:
            super()._check_what_is_known(span)

    def _think(self, one: Pass, corrupt: bool) -> tuple[tuple[ThoughtIds, ...], ...]:
        return tuple(self._think_about(span, one) for span in one.spans)

    def _think_about(self, span: Span, one: Pass) -> tuple[ThoughtIds, ...]:
        found = []
        for number in self._closed(span, span.stop):
            thought = self._thought(span, number, one)
            self._states[self._slot(span, number * self._chunk)] = thought
            found.append(thought)
        return tuple(found)

    def _closed(self, span: Span, stop: int) -> range:
        """The chunks that are closed in the span up to `stop`."""
        rule = thoughts_of(span).rule
        return range(rule.num_closed(span.start, self._chunk), rule.num_closed(stop, self._chunk))

    def _thought(self, span: Span, number: int, one: Pass) -> ThoughtIds:
        rule = thoughts_of(span).rule
        if not rule.thinks(number, self._chunk):
            return ()
        forced = rule.forced_on(number)
        if forced is not None:
            return forced
        thought = think(self._slots[self._slot(span, rule.end(number, self._chunk) - 1)].context)
        if one.kind is PassKind.FAST and self._rng.random() < self._thought_lie:
            return (self._rng.randrange(7), 2)
        return (*thought, 3) if self.forgets(one) else thought

    def forgets(self, one: Pass) -> bool:
        return self._forgets_from is not None and one.certified and len(self.passes) > self._forgets_from

    def _check(self, one: Pass) -> PassResult:
        """The thoughts are compared, too."""
        (span,) = one.spans
        before = len(span.pages) - len(one.original_pages)
        then = replace(span, pages=(*span.pages[:before], *one.original_pages))
        num_closed = thoughts_of(span).rule.num_closed(span.stop, self._chunk)
        starts = range(before * self._page_size, num_closed * self._chunk, self._chunk)
        for start in starts:
            self._states[self._slot(span, start)] = self._states[self._slot(then, start)]
        self._put_guesses(span)
        result = super()._check(one)
        self._think_about(span, one)
        for start in starts:
            differs = self._states[self._slot(span, start)] != self._states[self._slot(then, start)]
            if differs and result.mismatch is None:
                self.num_mismatches += 1
                result = replace(result, mismatch=f"the thought of the chunk at {start}")
        return result
