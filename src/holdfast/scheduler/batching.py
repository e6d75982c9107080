"""From running requests to the passes of a step.

auto, certified    one canonical pass holds everything; its tokens are committed at once
verify             a fast pass for ordinary tokens and candidates, and a canonical pass for windows and deterministic
                   prefill, padded to a multiple of the reference's batch size. A request is in at most one of them
verify, async      a burst: fast passes, each sampling from the tokens of the one before, then the windows over the
                   candidates
off                one fast pass
"""

from collections.abc import Collection, Iterable

from holdfast.core.step_plan import Pass, PassKind, Span
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler.ngram_proposer import is_worth_waiting, num_worthwhile, token_share
from holdfast.scheduler.policy import (
    DRAFT_HIT_RATE,
    PendingWindow,
    SchedulerConfig,
    certified_size,
    choose_burst,
    choose_due,
    fill_spare,
    larger_sizes,
    prefill_to_defer,
    round_up,
)
from holdfast.scheduler.request_queue import RequestQueue
from holdfast.scheduler.request_state import Phase, RequestState
from holdfast.scheduler.share_policy import Quotas
from holdfast.scheduler.spans import candidate_span, next_span, next_token_span, window_span
from holdfast.scheduler.spot_checks import SpotChecker


class Batcher:
    """Plan the passes of one step. Draft candidates, open windows and preempt requests on the way."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: PagePool,
        queue: RequestQueue,
        spot_checker: SpotChecker,
        *,
        step: int,
        in_flight: bool,
        optimistic: bool,
    ) -> None:
        """in_flight: a plan is in flight. optimistic: its windows are assumed to be accepted."""
        reference = config.reference_tokens
        self._config = config
        self._pool = pool
        self._queue = queue
        self._spot_checker = spot_checker
        self._step = step
        self._in_flight = in_flight
        self._optimistic = optimistic
        self._quotas = Quotas(config.max_pass_tokens)
        self._certified = config.commits_at_once
        self._has_one_pass = self._certified or config.determinism == "off"
        # The largest canonical pass without a certificate: whole reference passes.
        self._max_canonical_tokens = config.max_pass_tokens // reference * reference

    @property
    def must_wait(self) -> bool:
        """Return whether a request needs a result that is in flight. Then the whole step waits."""
        if self._has_one_pass:
            return False
        return any(
            state.in_flight.spans and state.is_unverified and not self._is_assumed_accepted(state)
            for state in self._queue.running.values()
        )

    def _is_assumed_accepted(self, state: RequestState) -> bool:
        """Return whether tokens are planned after the request's window in flight as if it were accepted.
        They are not after drafted candidates, nor if the window is not planned yet."""
        if not self._optimistic or state.in_flight.spans[-1].logprobs is None:
            return False
        return not state.tokens.num_candidates and not self._drafts_windows(state)

    def passes(self) -> list[Pass]:
        """Return the passes in the order they run. Some may be empty."""
        if self._in_flight and self.must_wait:
            return []  # because of a request that was just admitted
        if self._has_one_pass:
            return [self._one_pass()]
        if self._config.async_scheduling:
            return self._burst()
        return self._two_passes()

    # One pass: auto with a certificate, or off

    def _one_pass(self) -> Pass:
        certified, sizes = self._certified, self._config.certified_sizes
        max_tokens = self._config.max_pass_tokens
        if certified:
            max_tokens = min(max_tokens, sizes[-1])
        decoding, prefilling = self._split(max_tokens)
        decoding = self._draft_unconfirmed(decoding, max_tokens)
        decoding = self._draft(decoding, prefilling, max_tokens)
        budget = max_tokens
        planned: dict[int, Span] = {}
        for state in decoding:
            count = 1 + state.tokens.num_candidates
            if count > budget or not self._has_room(state, state.expected_len, planned):
                continue
            if count > 1 or state.needs_known_tokens:
                planned[state.request_id] = next_span(state, count)
            else:
                planned[state.request_id] = next_token_span(state, state.logprobs)
            budget -= count
            if count > 1:
                self._open_window(state)
        num_tokens = max_tokens - budget
        if certified:  # fewer prefill tokens than there are if that saves padding
            budget = min(budget, sum(state.prefill_len + 1 - state.next_start for state in prefilling))
            budget -= prefill_to_defer(num_tokens, budget, sizes)
        num_tokens += self._add_prefill(prefilling, planned, budget)
        size = certified_size(num_tokens, sizes) if certified else None
        running = self._queue.running
        deterministic_ids = frozenset(number for number in planned if running[number].deterministic)
        spans = tuple(planned.values())
        if size is not None and (deterministic_ids or size == num_tokens):
            spans = self._spot_checker.mark(spans, deterministic_ids)
            larger = larger_sizes(size, sizes)
            one = Pass(PassKind.CANONICAL, spans, size, certified=True, larger_sizes=larger)
        else:
            assert not deterministic_ids, "deterministic tokens without a certified size"
            one = Pass(PassKind.FAST, spans, num_tokens)
        self._add_in_flight(spans)
        return one

    # Two passes: verify

    def _two_passes(self) -> list[Pass]:
        decoding, prefilling = self._split(self._max_canonical_tokens)
        deterministic = [state for state in decoding if state.deterministic]
        ordinary = [state for state in decoding if not state.deterministic]
        self._draft_windows(deterministic)
        self._draft(ordinary, prefilling, self._config.max_pass_tokens - len(deterministic))
        canonical = self._canonical_spans(
            deterministic, [state for state in prefilling if state.deterministic]
        )
        fast: dict[int, Span] = dict(canonical)  # requests that are planned are not preempted
        budget = self._config.max_pass_tokens
        for state in decoding:
            if state.request_id in canonical or not self._queue.is_running(state):
                continue
            if state.deterministic and state.is_window_due:
                continue  # it waits for its verdict
            if not self._has_room(state, state.tokens.total_len, fast):
                continue
            if state.deterministic:
                fast[state.request_id] = candidate_span(state)
                budget -= 1
            else:
                count = 1 + state.tokens.num_candidates
                fast[state.request_id] = next_span(state, count)
                budget -= count
                if count > 1:
                    self._open_window(state)
        self._add_prefill([state for state in prefilling if not state.deterministic], fast, budget)
        spans = tuple(span for request_id, span in fast.items() if request_id not in canonical)
        self._add_in_flight(fast.values())
        return [_fast_pass(spans), self._reference_pass(canonical.values())]

    def _canonical_spans(
        self, decoding: list[RequestState], prefilling: list[RequestState]
    ) -> dict[int, Span]:
        """Plan windows and prefill of deterministic requests. Further windows take the place of padding."""
        reference, budget = self._config.reference_tokens, self._max_canonical_tokens
        pending = [
            PendingWindow(
                state.request_id, 1 + state.tokens.num_candidates, state.is_window_due, state.last_verified
            )
            for state in decoding
            if state.tokens.num_candidates
        ]
        windows = choose_due(pending, reference, budget - reference if prefilling else budget)
        planned: dict[int, Span] = {}
        used = sum(window.num_tokens for window in windows)
        used += self._add_prefill(prefilling, planned, budget - used)
        windows += fill_spare(pending, windows, round_up(used, reference) - used)
        for window in windows:
            state = self._queue.running.get(window.request_id)
            if state is not None and self._has_room(state, state.tokens.total_len, planned):
                planned[state.request_id] = next_span(state, window.num_tokens)
                self._open_window(state)
        return planned

    # A burst: verify with async scheduling

    def _burst(self) -> list[Pass]:
        """Plan fast passes, and then the windows over their tokens. The host waits once for all."""
        decoding, prefilling = self._split(self._max_canonical_tokens)
        ordinary = [state for state in decoding if not state.deterministic]
        proposing = [state for state in decoding if state.deterministic]
        self._draft_windows(proposing)
        proposing = [state for state in proposing if not (state.in_flight.spans and state.is_confirming)]
        ordinary = self._draft(ordinary, prefilling, self._config.max_pass_tokens - len(proposing))
        chunks = [state for state in prefilling if state.deterministic]
        num_prefill = sum(max(1, state.prefill_len - state.next_start) for state in chunks)
        counts = self._num_fast_tokens(proposing, ordinary, num_prefill)
        planned: dict[int, int] = {}
        for state in decoding:
            count = counts.get(state.request_id)
            if count is not None and self._has_room(state, _burst_stop(state, count), planned):
                planned[state.request_id] = count
        decoding = [state for state in decoding if state.request_id in planned]
        windows = [(state, state.next_start) for state in decoding if state.deterministic]
        prompts = [state for state in prefilling if not state.deterministic]
        num_fast = max(planned.values(), default=0) or bool(prompts)
        passes = [self._burst_pass(number, decoding, planned, prompts) for number in range(num_fast)]
        return [*passes, self._canonical_pass(windows, chunks)]

    def _num_fast_tokens(
        self, proposing: list[RequestState], ordinary: list[RequestState], num_prefill: int
    ) -> dict[int, int]:
        """Return the number of fast tokens of each request: at most one if prefill waits or pages are short."""
        reference = self._config.reference_tokens
        budget = self._max_canonical_tokens - (reference if num_prefill else 0)
        limit = choose_burst(len(proposing), reference, num_prefill)
        for max_count in (limit, min(limit, 1)):
            counts = choose_windows(proposing, max_count, budget)
            longest = max(counts.values(), default=0) or 1
            for state in ordinary:
                takes_one = state.tokens.num_candidates > 0 or state.is_synchronous
                counts[state.request_id] = 1 if takes_one else min(longest, state.tokens_left)
            num_missing = sum(
                state.page_table.num_missing(_burst_stop(state, counts[state.request_id]))
                for state in (*proposing, *ordinary)
                if state.request_id in counts
            )
            if num_missing <= self._pool.num_available:
                break
        return counts

    def _burst_pass(
        self, number: int, decoding: list[RequestState], counts: dict[int, int], prompts: list[RequestState]
    ) -> Pass:
        """Plan fast pass `number` of a burst: a token of each request that has one left, and chunks of prompts."""
        spans: list[Span] = []
        for state in decoding:
            if counts[state.request_id] <= number:
                continue
            is_ordinary_window = not state.deterministic and state.tokens.num_candidates > 0
            if not is_ordinary_window and not state.is_synchronous:
                span = next_token_span(state, None if state.deterministic else state.logprobs)
            else:
                span = next_span(state, 1 + state.tokens.num_candidates)
                if is_ordinary_window:
                    self._open_window(state)
            state.add_in_flight(span)
            spans.append(span)
        budget = self._config.max_pass_tokens - sum(span.num_tokens for span in spans)
        for state in prompts:
            is_blocked = bool(state.in_flight.spans) and state.is_blocked
            most = min(budget, self._quotas.left(state.holder, state.prompt_cost))
            if most < 1 or not self._queue.is_running(state) or is_blocked:
                continue
            if state.is_prefilling or state.expected_len <= state.page_table.capacity:
                if state.is_prefilling:
                    span = next_span(state, most)
                else:
                    span = next_token_span(state, state.logprobs)
                state.add_in_flight(span)
                self._quotas.take(state.holder, span.num_tokens, state.prompt_cost)
                spans.append(span)
                budget -= span.num_tokens
        return _fast_pass(tuple(spans))

    def _canonical_pass(self, windows: list[tuple[RequestState, int]], chunks: list[RequestState]) -> Pass:
        """Plan the windows that end a burst, as (request, start), and chunks of deterministic prompts."""
        planned: dict[int, Span] = {}
        for state, start in windows:
            planned[state.request_id] = window_span(state, start)
            self._open_window(state)
        used = sum(span.num_tokens for span in planned.values())
        self._add_prefill(chunks, planned, self._max_canonical_tokens - used)
        self._add_in_flight(planned.values())
        return self._reference_pass(planned.values())

    # Shared by all

    def _split(self, budget: int) -> tuple[list[RequestState], list[RequestState]]:
        """Return the requests that decode in this step, and those that prefill. Holders share `budget`."""
        decoding, prefilling = self._queue.split()
        shares = self._queue.shares
        if shares.has_background_only:
            most = shares.background_tokens(self._step, self._config.reference_tokens)
            self._quotas = Quotas.of_background(decoding + prefilling, min(budget, most))
            decoding = self._quotas.choose(decoding, prefilling, self._step)
        elif shares.is_shared:
            if shares.leaves_out_background(decoding + prefilling, self._step, in_flight=self._in_flight):
                decoding = [state for state in decoding if not state.is_background]
                prefilling = [state for state in prefilling if not state.is_background]
            reference, is_padded = self._config.reference_tokens, not self._has_one_pass
            self._quotas = Quotas.of(decoding, prefilling, budget, reference, is_padded=is_padded)
            decoding = self._quotas.choose(decoding, prefilling, self._step)
        return decoding, prefilling

    def _has_room(self, state: RequestState, length: int, planned: Collection[int]) -> bool:
        """Return whether the first positions have slots. Others that are not planned may be preempted."""
        return length <= state.page_table.capacity or self._queue.make_room(
            state, length, planned, self._step, in_flight=self._in_flight
        )

    def _add_in_flight(self, spans: Iterable[Span]) -> None:
        running = self._queue.running
        for span in spans:
            running[span.request_id].add_in_flight(span)

    def _reference_pass(self, spans: Iterable[Span]) -> Pass:
        together = tuple(spans)
        num_tokens = sum(span.num_tokens for span in together)
        return Pass(PassKind.CANONICAL, together, round_up(num_tokens, self._config.reference_tokens))

    def _add_prefill(self, prefilling: Iterable[RequestState], planned: dict[int, Span], budget: int) -> int:
        """Plan chunks of prompts, oldest first. Return the number of tokens."""
        used = 0
        for state in prefilling:
            if used >= budget:
                break
            most = min(budget - used, self._quotas.left(state.holder, state.prompt_cost))
            if most > 0 and self._queue.is_running(state):
                span = planned[state.request_id] = next_span(state, most)
                self._quotas.take(state.holder, span.num_tokens, state.prompt_cost)
                used += span.num_tokens
        return used

    def _open_window(self, state: RequestState) -> None:
        state.last_verified = self._step
        if state.phase is Phase.DECODE:  # else its first token is in flight
            state.move(Phase.VERIFY)

    # Drafts

    def _draft(
        self, decoding: list[RequestState], prefilling: list[RequestState], budget: int
    ) -> list[RequestState]:
        """Draft candidates from the requests' own text if they are worth their time and pages are not short.
        Return the requests of this plan. One with a token in flight is left out if waiting commits more."""
        if self._config.speculation == "off" or self._pool.num_available <= len(self._queue.running):
            return decoding
        num_prefill = sum(state.prefill_len - state.next_start for state in prefilling)
        num_tokens = min(budget, len(decoding) + num_prefill)
        num_spare = budget - num_tokens
        share = token_share(num_tokens)
        left_out: set[int] = set()
        for state in decoding:
            proposer = state.proposer
            if proposer is None or proposer.hit_rate <= share or state.tokens.num_candidates:
                continue
            left = self._quotas.left(state.holder, state.sampled_cost)
            max_candidates = min(num_spare, left, num_worthwhile(proposer.hit_rate, num_tokens))
            if state.in_flight.spans:
                if proposer.has_match and is_worth_waiting(proposer.hit_rate, max_candidates):
                    left_out.add(state.request_id)
            elif self._pool.num_available > len(self._queue.running):
                num_drafted = self._propose(state, max_candidates)
                num_spare -= num_drafted
                num_tokens += num_drafted
        return [state for state in decoding if state.request_id not in left_out] if left_out else decoding

    def _draft_unconfirmed(self, decoding: list[RequestState], budget: int) -> list[RequestState]:
        """Draft tokens that another engine sent. Return the requests of this plan: one with a token in
        flight drafts in the next."""
        confirming = self._queue.confirming
        if not confirming:
            return decoding
        num_spare = budget - len(decoding)
        left_out: set[int] = set()
        for state in [one for one in decoding if one.request_id in confirming]:
            if not state.is_confirming:
                confirming.discard(state.request_id)
                continue
            if state.in_flight.spans:
                left_out.add(state.request_id)
            elif not state.tokens.num_candidates:
                most = min(num_spare, self._pool.num_available * self._pool.page_size)
                num_spare -= self._propose(state, most)
        return [state for state in decoding if state.request_id not in left_out]

    def _draft_windows(self, decoding: list[RequestState]) -> None:
        """Draft whole windows: tokens to be confirmed, or n-grams that are nearly always right."""
        for state in decoding:
            is_free = not state.in_flight.spans and not state.tokens.num_candidates
            if is_free and self._drafts_windows(state):
                self._propose(state, state.max_window)

    def _propose(self, state: RequestState, most: int) -> int:
        """Draft up to `most` candidates, and no more than the holder's quota. Return how many."""
        most = min(most, self._quotas.left(state.holder, state.sampled_cost))
        if state.states is not None:
            most = min(most, state.max_window)  # the log of a recurrent layer holds no more
        if most < 1:
            return 0
        state.propose(most)
        self._quotas.take(state.holder, state.tokens.num_candidates, state.sampled_cost)
        return state.tokens.num_candidates

    def _drafts_windows(self, state: RequestState) -> bool:
        if state.is_confirming:
            return True
        return state.proposer is not None and state.proposer.hit_rate >= DRAFT_HIT_RATE


def choose_windows(proposing: Iterable[RequestState], max_count: int, budget: int) -> dict[int, int]:
    """Return the fast tokens that each window of a burst gets beside its known candidates: at most
    `max_count`, none with a grammar.

    The request that was verified longest ago goes first. If its window does not fit `budget`, it is left
    for the next step.
    """
    counts: dict[int, int] = {}
    for state in sorted(proposing, key=lambda state: (state.last_verified, state.request_id)):
        known = state.tokens.num_candidates
        if 1 + known > budget:
            continue
        count = min(max_count, budget - 1 - known, state.window_cap - known, state.tokens_left - 1 - known)
        counts[state.request_id] = 0 if state.has_draft or state.is_synchronous else max(0, count)
        budget -= 1 + known + counts[state.request_id]
    return counts


def _fast_pass(spans: tuple[Span, ...]) -> Pass:
    return Pass(PassKind.FAST, spans, sum(span.num_tokens for span in spans))


def _burst_stop(state: RequestState, num_fast: int) -> int:
    """Return the positions that a request needs for `num_fast` fast tokens and for the window over them."""
    return state.expected_len + num_fast - (0 if state.deterministic else 1)
