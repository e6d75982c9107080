"""The scheduler: admits requests, plans passes, and updates requests with what the passes return.

    plan = scheduler.plan()                        StepPlan: the passes of the next step
    results = runner.run(plan)                     PassResult for each pass
    events = scheduler.update(plan, results)       tokens committed, requests ended, ...

With `async_scheduling` the next plan may be made before the last one is read. Then it starts after
the spans in flight (`RequestState.in_flight`), and is empty if a result is needed first. Plans are
read in the order they were made.

Between a window and its verdict nothing else changes a request, except tokens planned on the
assumption that the window is accepted: while nearly all windows are, the next burst is planned
before the verdict is read. If the window is rejected, the request's results in flight are
discarded, and it has lost one burst.

Some steps start with a pass that checks the certificate (spot_checks.py). If the check fails, the
certificate is revoked: every deterministic request restarts from its prompt, and from then on
everything is verified.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.events import (
    CertificateChecked,
    Event,
    ExtraCommitted,
    PromptPooled,
    PromptScored,
    RequestEnded,
    TokensCommitted,
    TokensConfirmed,
)
from holdfast.core.request import AnswerText, Prepared
from holdfast.core.step_plan import UNKNOWN_TOKEN, Pass, PassKind, PassResult, Sampled, StepPlan
from holdfast.core.stop_rules import FinishReason
from holdfast.errors import GuaranteeLost, PassFailed, PromptTooLong
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache
from holdfast.kv_cache.state_pool import StatePool
from holdfast.scheduler.batching import Batcher
from holdfast.scheduler.commit import apply
from holdfast.scheduler.policy import SchedulerConfig, assume_accepted, update_acceptance_rate
from holdfast.scheduler.request_queue import PlanInFlight, RequestQueue
from holdfast.scheduler.request_state import LIVE, Phase, RequestState
from holdfast.scheduler.spot_checks import PendingCheck, SpotChecker
from holdfast.scheduler.verification import SpanOutcome, verify


@dataclass(slots=True)
class InFlightPlan:
    """A plan whose results are not read yet, and what is released when they are.

    to_release: page tables (pinned) and request indices of requests that ended, restarted or were rolled
    back meanwhile. is_stale: it was made before the certificate was revoked.
    """

    plan: StepPlan
    checks: list[PendingCheck]
    to_release: list[tuple[PageTable, int]] = field(default_factory=list)
    is_stale: bool = False


class Scheduler:
    """All live requests and the pages they hold."""

    def __init__(self, config: SchedulerConfig, pool: PagePool) -> None:
        self.config = config
        self.pool = pool
        self.states = StatePool(config.num_states, config.max_num_seqs) if config.num_states else None
        self.prefix_cache = PrefixCache(pool, self.states)
        self._in_flight: deque[InFlightPlan] = deque()
        self._step = 0
        rate = config.spot_check_rate if config.determinism == "auto" else 0.0
        self._spot_checker = SpotChecker(
            rate, config.reference_tokens, config.max_pass_tokens, pool, self.states
        )
        self._queue = RequestQueue(config, pool, self.prefix_cache, self._spot_checker)
        self._acceptance_rate = 1.0  # of recent windows, as a whole
        self._lent_pages: list[int] = []

    # Requests

    @property
    def num_waiting(self) -> int:
        return len(self._queue.waiting)

    @property
    def num_running(self) -> int:
        return len(self._queue.running)

    @property
    def running_ids(self) -> Iterable[int]:
        return self._queue.running.keys()

    @property
    def waiting_ids(self) -> frozenset[int]:
        """The requests that hold no pages: not admitted yet, or preempted."""
        return frozenset(state.request_id for state in self._queue.waiting)

    @property
    def requests(self) -> tuple[RequestState, ...]:
        """Every live request, by arrival. Read only."""
        states = (*self._queue.waiting, *self._queue.running.values())
        return tuple(sorted(states, key=lambda state: state.request_id))

    @property
    def has_work(self) -> bool:
        queue = self._queue
        return bool(queue.waiting or queue.running or self._in_flight or self._spot_checker.due)

    def require_room(self, max_len: int) -> None:
        """Raise if a request of this length could never fit the pool."""
        if self.pool.pages_for(max_len) > self.pool.num_pages:
            raise PromptTooLong(
                f"prompt and answer need {max_len} KV positions, the KV budget holds "
                f"{self.pool.num_pages * self.pool.page_size}; shorten the prompt, lower max_tokens or raise kv_memory"
            )

    def submit(self, prepared: Prepared, text: AnswerText, index: int = 0) -> None:
        """Queue one answer of a request, the index-th."""
        self.require_room(prepared.request.max_len)
        new_extension = self.config.new_extension
        self._queue.enqueue(
            RequestState(
                prepared,
                index,
                text,
                self.pool,
                self.prefix_cache,
                max_window=self.config.longest_window,
                speculates=self.config.speculation == "ngram",
                extension=None if new_extension is None else new_extension(prepared.request),
                state_interval=self.config.state_interval if self.config.prefix_cache else 0,
            )
        )

    def abort(self, request_id: int) -> list[Event]:
        """End a request now. Pages that a pass in flight writes to are freed when its result is read."""
        state = self._queue.running.get(request_id)
        if state is None:
            waiting = (one for one in self._queue.waiting if one.request_id == request_id)
            state = next(waiting, None)
            if state is None:
                return []
            self._queue.waiting.remove(state)
        return [self._end(state, Phase.ABORTED, "abort")]

    def fail(self, plan: StepPlan, message: str) -> list[Event]:
        """End every request in flight with an error: a pass of this plan raised. The others go on."""
        assert any(flight.plan is plan for flight in self._in_flight), "this plan is not in flight"
        checked = {check.state.request_id for flight in self._in_flight for check in flight.checks}
        failed = [
            state
            for state in self._queue.by_arrival()
            if state.in_flight.spans or state.request_id in checked
        ]
        while self._in_flight:
            self._release(self._in_flight.popleft())
        for state in failed:
            state.failure = PassFailed(message)
        return [self._end(state, Phase.FAILED, "error") for state in failed]

    # The certificate

    def adopt(self, certified_sizes: tuple[int, ...]) -> None:
        """Take passes of these sizes as canonical, from the next plan on."""
        assert not self._in_flight, "the plans made before must be read first"
        self.config = replace(self.config, certified_sizes=certified_sizes)

    def refuse_deterministic(self, message: str) -> list[Event]:
        """End every deterministic request with an error: the reference contradicts itself."""
        assert not self._in_flight, "the plans made before must be read first"
        events: list[Event] = []
        for state in self._forget_certified():
            if not self._queue.is_running(state):
                self._queue.waiting.remove(state)
            state.failure = GuaranteeLost(message)
            events.append(self._end(state, Phase.FAILED, "error"))
        return events

    def lend_pages(self, num_wanted: int) -> tuple[int, ...]:
        """Lend up to `num_wanted` pages to a check that runs between plans and writes to them. At most
        half of the pages that no request can need are lent. Return () if that is less than `num_wanted`
        and less than a quarter of the pool."""
        assert not self._lent_pages, "pages are lent once at a time"
        num_spare = (self.pool.num_available - self._num_pages_needed) // 2
        if num_spare < min(num_wanted, max(1, self.pool.num_pages // 4)):
            return ()
        for _ in range(min(num_wanted, num_spare)):
            self._lent_pages.append(self.pool.take())
        return tuple(self._lent_pages)

    def take_back_pages(self) -> None:
        """End the loan."""
        while self._lent_pages:
            self.pool.drop(self._lent_pages.pop())

    @property
    def lacks_lent_pages(self) -> bool:
        """Return whether requests may need pages that are lent."""
        return bool(self._lent_pages) and self._num_pages_needed > self.pool.num_available

    @property
    def _num_pages_needed(self) -> int:
        """The pages that all live requests need at full length and do not have yet."""
        waiting = sum(self.pool.pages_for(state.request.max_len) for state in self._queue.waiting)
        running = self._queue.running.values()
        return waiting + sum(state.page_table.num_missing(state.request.max_len) for state in running)

    # Plan

    def plan(self) -> StepPlan:
        """Return the passes of the next step: none if there is nothing to do or a result must be read first."""
        in_flight = bool(self._in_flight)
        assert len(self._in_flight) <= self.config.async_scheduling, "the last plan was not read"
        batcher = Batcher(
            self.config,
            self.pool,
            self._queue,
            self._spot_checker,
            step=self._step + 1,
            in_flight=in_flight,
            optimistic=in_flight
            and assume_accepted(self._acceptance_rate, len(self._in_flight[-1].plan.passes)),
        )
        if in_flight and (batcher.must_wait or self._in_flight[-1].is_stale):
            return StepPlan(())
        self._step += 1
        check_passes, checks = self._spot_checker.plan_checks(self.num_running)
        try:
            self._queue.admit(self._step, in_flight=in_flight, has_checks=bool(checks))
            passes = batcher.passes()
        except PlanInFlight:
            passes = []
        plan = StepPlan(tuple(one for one in [*check_passes, *passes] if one.spans))
        if plan:
            self._in_flight.append(InFlightPlan(plan, checks))
        return plan

    # Update

    def update(
        self, plan: StepPlan, results: Sequence[PassResult], between: Callable[[], None] | None = None
    ) -> list[Event]:
        """Commit, roll back and finish requests by the results of the oldest plan. between: called between
        passes."""
        if not plan:
            return []
        flight = self._in_flight.popleft()
        assert flight.plan is plan, "plans must be read in the order they were made"
        self._release(flight)
        events: list[Event] = []
        for number, (one, result) in enumerate(zip(plan.passes, results, strict=True)):
            if number and between is not None:
                between()
            if one.kind is PassKind.CHECK:
                self._update_check(flight, one, result, events)
            else:
                self._update_pass(one, result, events)
        return events

    def _update_check(self, flight: InFlightPlan, one: Pass, result: PassResult, events: list[Event]) -> None:
        if flight.is_stale or not self.config.certified_sizes:
            return  # the certificate is already revoked
        events.append(CertificateChecked(one.num_tokens, result.mismatch))
        if result.mismatch is not None:
            self._revoke()
            flight.is_stale = True

    def _update_pass(self, one: Pass, result: PassResult, events: list[Event]) -> None:
        running, scores, extra, pooled = self._queue.running, result.scores, result.extra, result.pooled
        is_canonical, is_certified = one.kind is PassKind.CANONICAL, one.certified
        for number, (span, samples) in enumerate(zip(one.spans, result.samples, strict=True)):
            state = running.get(span.request_id)
            if state is None or not state.in_flight.pop(span):
                continue  # the request ended or restarted while the pass ran
            outcome = verify(
                state,
                span,
                samples,
                is_canonical=is_canonical,
                is_certified=is_certified,
                scores=scores[number] if scores else (),
                extra=extra[number] if extra else None,
                states=pooled[number] if pooled else None,
            )
            self._update_request(state, outcome, samples, events)

    def _update_request(
        self, state: RequestState, outcome: SpanOutcome, samples: Sequence[Sampled], events: list[Event]
    ) -> None:
        new_tokens, new_items = apply(state, outcome)
        span = outcome.span
        if outcome.is_window and span.token_ids[-1] == UNKNOWN_TOKEN:
            self._update_acceptance_rate(state, outcome)
        if outcome.new_scores:
            events.append(PromptScored(state.request_id, outcome.new_scores))
        if outcome.states is not None and state.pooled is not None and state.pooled.embedding is not None:
            events.append(PromptPooled(state.request_id, state.pooled.embedding))
        if new_items:
            events.append(ExtraCommitted(state.request_id, new_items))
        if state.confirmed:
            events.append(TokensConfirmed(state.request_id, tuple(state.confirmed)))
            state.confirmed.clear()
        if new_tokens:
            events.append(TokensCommitted(state.request_id, new_tokens))
        if state.computed_len >= state.prefix_cursor.next_len and self.config.prefix_cache:
            state.cache_pages()
        if span.state is not None:
            state.cache_states(span)
        phase = state.phase
        if span.with_checksums:
            self._spot_checker.record(span, samples[: span.num_sampled])
            self._spot_checker.advance(state, ended=phase not in LIVE)
        if phase is not Phase.DECODE:
            self._update_phase(state, outcome, events)

    def _update_acceptance_rate(self, state: RequestState, outcome: SpanOutcome) -> None:
        """Count the verdict on candidates that were in flight together with their window. After a rollback
        discard the spans that were planned on it. Their pages stay until the passes are over."""
        accepted = outcome.num_rejected == 0
        self._acceptance_rate = update_acceptance_rate(self._acceptance_rate, accepted=accepted)
        if not accepted and state.in_flight.spans:
            state.in_flight.clear()
            state.page_table.pin()
            self._in_flight[-1].to_release.append((state.page_table, -1))

    def _update_phase(self, state: RequestState, outcome: SpanOutcome, events: list[Event]) -> None:
        if state.failure is not None:
            events.append(self._retire(state, "error"))
            if state.is_lost and self.config.certified_sizes:  # as good a proof as a failed check
                self._revoke()
                events.append(CertificateChecked(0, f"request {state.request_id} came out otherwise"))
        elif state.phase is Phase.FINISHED:
            assert state.finish_reason is not None
            events.append(self._retire(state, state.finish_reason))
        elif state.phase is Phase.VERIFY:
            if not state.in_flight.spans:  # else these are the candidates, and their window follows
                state.move(Phase.DECODE)
        elif state.phase is Phase.PREFILL and outcome.span.num_sampled and not state.needs_prefill:
            state.move(Phase.DECODE)

    def _revoke(self) -> None:
        """Do without the certificate, which is wrong: restart every deterministic request."""
        for flight in self._in_flight:
            flight.is_stale = True
        for state in self._forget_certified():
            self._spot_checker.forget(state)
            was_running = self._queue.is_running(state)
            self._stop_running(state)
            state.restart()
            if was_running:
                self._queue.enqueue(state)

    def _forget_certified(self) -> list[RequestState]:
        """Verify from now on, and share no page of before. Return the deterministic requests."""
        self.config = replace(self.config, certified_sizes=())
        self.prefix_cache.clear()
        self._spot_checker.forget_due()
        states = (*self._queue.waiting, *self._queue.by_arrival())
        for state in states:
            if not state.deterministic:
                state.distrust_pages()
        return [state for state in states if state.deterministic]

    # The end of a request

    def _end(self, state: RequestState, phase: Phase, reason: FinishReason) -> RequestEnded:
        state.move(phase)
        return self._retire(state, reason)

    def _retire(self, state: RequestState, reason: FinishReason) -> RequestEnded:
        self._stop_running(state)
        self._queue.confirming.discard(state.request_id)
        state.drop_candidates()
        self._spot_checker.forget(state)
        state.give_up_pages()
        failure = state.failure
        error, code = (None, None) if failure is None else (str(failure), failure.code)
        return RequestEnded(state.request_id, reason, state.determinism, state.final_stats(), error, code)

    def _stop_running(self, state: RequestState) -> None:
        """Stop the request. Its index and its pages stay reserved until no plan in flight uses them."""
        request_index = self._queue.remove(state)
        if self._in_flight and (state.in_flight.spans or state.page_table.is_pinned):
            state.page_table.pin()
            self._in_flight[-1].to_release.append((state.page_table, request_index))
        else:
            self._queue.free_index(request_index)

    def _release(self, flight: InFlightPlan) -> None:
        """Free what was kept for this plan: its results are read, or will never be."""
        self._spot_checker.close(flight.checks)
        for page_table, request_index in flight.to_release:
            page_table.unpin()
            self._queue.free_index(request_index)

    # Integrity

    def check(self) -> None:
        """Raise if a page leaked or is held too often, or lengths contradict each other."""
        checks = [
            *self._spot_checker.due,
            *(check for flight in self._in_flight for check in flight.checks),
        ]
        to_release = [one for flight in self._in_flight for one in flight.to_release]
        tables = [state.page_table for state in (*self._queue.waiting, *self._queue.running.values())]
        tables += [check.page_table for check in checks] + [table for table, _ in to_release]
        holders: dict[int, int] = {}
        for pages in (
            *(table.pages for table in {id(table): table for table in tables}.values()),
            *(check.scratch_pages for check in checks),
            self._lent_pages,
        ):
            for page in pages:
                holders[page] = holders.get(page, 0) + 1
        self.pool.check(holders)
        self._check_states(checks)
        self.prefix_cache.check()
        self._queue.check_indices([request_index for _, request_index in to_release])
        for state in self._queue.running.values():
            self._check_lengths(state, holders)

    def _check_states(self, checks: Sequence[PendingCheck]) -> None:
        if self.states is None:
            return
        cursors = [state.states for state in self.requests if state.states is not None]
        running = [one.slot for one in cursors if one.slot >= 0]
        assert len(running) == self.num_running
        lent = [slot for one in cursors for slot in one.lent]
        lent += self._spot_checker.snapshots(checks)
        self.states.check(running, lent, [one.kept for one in cursors if one.kept is not None])

    def _check_lengths(self, state: RequestState, holders: dict[int, int]) -> None:
        assert state.canonical_len <= state.computed_len <= state.tokens.total_len
        for page in state.page_table.pages[state.valid_len // self.pool.page_size :]:
            assert holders[page] == 1, f"page {page} is shared and still written to by {state.request_id}"
        cursor = state.prefix_cursor
        is_awaited = cursor.will_reach(cursor.next_len)
        assert state.phase is Phase.PREFILL or not is_awaited, "pages that others wait for never come"
        spans = state.in_flight.spans
        if spans:
            assert spans[-1].stop <= min(state.page_table.capacity, state.expected_len)
        elif state.deterministic and state.phase is not Phase.PREFILL:
            assert state.canonical_len == state.tokens.committed_len - 1, (
                "the last committed token is the first one of the next window"
            )
