"""The protocol's state machine: requests come, passes are planned, what they said is taken in.

One step is `plan`, then the runner, then `update`. With `async_scheduling` the next plan may be made before the last
is absorbed: then it counts on what is in flight (`RequestState.flying`), and is empty where that cannot be done.
Plans are absorbed in the order they were made.

Between a window and its verdict nothing else touches a sequence, but for rows that count on it: where
windows nearly always stand, the next burst begins behind one in flight as if it stood. If it falls, what is in flight behind
it is forgotten, and its sequence has lost a burst.

Now and then a pass checks the certificate (`watch.py`) in front of the others. If it finds it wrong, every deterministic
request starts over from its prompt, and from then on everything is verified.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field, replace

from holdfast.core.events import (
    CertificateChecked,
    Event,
    PromptScored,
    RequestEnded,
    ThoughtsCommitted,
    TokensCommitted,
)
from holdfast.core.grammar import Grammar
from holdfast.core.request import AnswerText, Request
from holdfast.core.step_plan import (
    UNKNOWN_TOKEN,
    Pass,
    PassKind,
    PassResult,
    Sampled,
    Span,
    StepPlan,
    ThinkRule,
    TokenLogprob,
)
from holdfast.core.stop_rules import FinishReason
from holdfast.errors import AnswerFailed, PassFailed, PromptTooLong
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache
from holdfast.scheduler.batching import Batcher
from holdfast.scheduler.phase import LIVE, Phase
from holdfast.scheduler.policy import SchedulerConfig, adapt_trust, counts_on_windows
from holdfast.scheduler.request_queue import OutOfPages, RequestQueue
from holdfast.scheduler.request_state import RequestState
from holdfast.scheduler.spot_checks import PendingCheck, SpotChecker
from holdfast.thinking.thought_log import ThoughtLog


@dataclass(slots=True)
class InFlightPlan:
    """A plan in flight, its checks, and what sequences that ended or started over meanwhile leave behind: a table, a lane."""

    plan: StepPlan
    checks: list[PendingCheck]
    leftovers: list[tuple[PageTable, int]] = field(default_factory=list)
    is_stale: bool = False  # made before the certificate was revoked


class Scheduler:
    """All live sequences and the pages they hold."""

    def __init__(self, config: SchedulerConfig, pool: PagePool) -> None:
        self.config = config
        self.pool = pool
        self.prefix_cache = PrefixCache(pool)
        self._flights: deque[InFlightPlan] = deque()
        self._step = 0
        rate = config.spot_check_rate if config.determinism == "auto" else 0.0
        self._spot_checker = SpotChecker(rate, config.reference_tokens, config.max_pass_tokens, pool)
        self._queue = RequestQueue(config, pool, self.prefix_cache, self._spot_checker)
        self._trust = 1.0  # how often windows stood lately

    # Requests come and go

    @property
    def num_waiting(self) -> int:
        return len(self._queue.queue)

    @property
    def num_running(self) -> int:
        return len(self._queue.running)

    @property
    def num_request_indices(self) -> int:
        """Lanes a plan may name: 0 .. num_request_indices - 1."""
        return self._queue.num_request_indices

    @property
    def num_in_flight(self) -> int:
        """Plans that are not absorbed yet."""
        return len(self._flights)

    @property
    def waiting_ids(self) -> frozenset[int]:
        """The requests that hold no pages yet, or not any more."""
        return frozenset(seq.request_id for seq in self._queue.queue)

    @property
    def requests(self) -> tuple[RequestState, ...]:
        """Everything live, by arrival; to be looked at, not changed."""
        return tuple(
            sorted((*self._queue.queue, *self._queue.running.values()), key=lambda seq: seq.request_id)
        )

    @property
    def has_work(self) -> bool:
        return bool(self._queue.queue or self._queue.running or self._flights) or self._spot_checker.is_due

    def require_room(self, max_len: int) -> None:
        """Refuse what could never fit the pool now, instead of finding out later. Changes nothing."""
        if self.pool.pages_for(max_len) > self.pool.num_pages:
            raise PromptTooLong(
                f"prompt and answer need {max_len} KV positions, the KV budget holds "
                f"{self.pool.num_pages * self.pool.page_size}; shorten the prompt, lower max_tokens or raise kv_memory"
            )

    def submit(self, request: Request, text: AnswerText, grammar: Grammar | None = None) -> None:
        """Queue a request."""
        self.require_room(request.max_len)
        max_window = self.config.reference_tokens - 1
        speculates = self.config.speculation == "ngram"
        self._queue.enqueue(
            RequestState(
                request,
                text,
                self.pool,
                self.prefix_cache,
                max_window,
                grammar=grammar,
                speculates=speculates,
                thoughts=self._thoughts(request),
            )
        )

    def _thoughts(self, request: Request) -> ThoughtLog | None:
        """Of a model that thinks. A request that shall do without has chunks that are not thought about."""
        params = request.params
        if not self.config.chunk_len:
            return None
        until = request.prompt_len if request.read_len is None else request.read_len
        if not params.think:
            until = 0
        rule = ThinkRule(None if params.think and self.config.while_answering else until, params.forced)
        return ThoughtLog(
            self.config.chunk_len, rule, confirms=params.deterministic, max_guesses=self.config.max_guesses
        )

    def abort(self, request_id: int) -> list[Event]:
        """End a request now. Pages a running pass writes to are given back when that pass is absorbed."""
        for seq in self._queue.queue:
            if seq.request_id == request_id:
                self._queue.queue.remove(seq)
                return [self._end(seq, Phase.ABORTED, "abort")]
        running = self._queue.running.get(request_id)
        return [] if running is None else [self._end(running, Phase.ABORTED, "abort")]

    def fail(self, plan: StepPlan, message: str) -> list[Event]:
        """A pass of this plan raised: every request in flight ends, the others go on."""
        assert any(flight.plan is plan for flight in self._flights), "this plan is not in flight"
        checked = {check.seq.request_id for flight in self._flights for check in flight.checks}
        failed = [seq for seq in self._queue.by_arrival() if seq.flying or seq.request_id in checked]
        while self._flights:
            self._land(self._flights.popleft())
        for seq in failed:
            seq.failure = PassFailed(message)
        return [self._end(seq, Phase.FAILED, "error", seq.failure) for seq in failed]

    # One step: plan

    def plan(self) -> StepPlan:
        """The passes of the next step; empty if there is nothing to do, or if a result must be known first."""
        in_flight = bool(self._flights)
        assert len(self._flights) <= self.config.async_scheduling, "the last plan was not absorbed"
        trusting = in_flight and counts_on_windows(self._trust, len(self._flights[-1].plan.passes))
        packing = Batcher(
            self.config,
            self.pool,
            self._queue,
            self._spot_checker,
            self._step + 1,
            in_flight=in_flight,
            trusting=trusting,
        )
        if in_flight and (packing.must_wait or self._flights[-1].is_stale):
            return StepPlan(())
        self._step += 1
        check_passes, checks = self._spot_checker.plan_checks(self.num_running)
        self._queue.admit(in_flight=in_flight or bool(checks))
        try:
            passes = packing.passes()
        except OutOfPages:
            passes = []
        plan = StepPlan(tuple(one for one in [*check_passes, *passes] if one.spans))
        if plan:
            self._flights.append(InFlightPlan(plan, checks))
        return plan

    # One step: absorb

    def update(
        self, plan: StepPlan, results: Ordered[PassResult], between: Callable[[], None] | None = None
    ) -> list[Event]:
        """Take in what the passes gave: commit, roll back, finish, make pages known. `between` is called between passes."""
        if not plan:
            return []
        flight = self._flights.popleft()
        assert flight.plan is plan, "plans are absorbed in the order they were made"
        self._land(flight)
        events: list[Event] = []
        for number, (one, result) in enumerate(zip(plan.passes, results, strict=True)):
            if number and between is not None:
                between()
            if one.kind is PassKind.CHECK:
                self._absorb_check(flight, one, result, events)
            else:
                self._absorb_pass(one, result, events)
        return events

    def _absorb_check(self, flight: InFlightPlan, one: Pass, result: PassResult, events: list[Event]) -> None:
        if flight.is_stale or not self.config.certified_sizes:
            return  # the certificate is void already
        events.append(CertificateChecked(one.num_tokens, result.mismatch))
        if result.mismatch is not None:
            self._revoke()
            flight.is_stale = True

    def _absorb_pass(self, one: Pass, result: PassResult, events: list[Event]) -> None:
        running, scores = self._queue.running, result.scores
        for number, (span, sampled) in enumerate(zip(one.spans, result.samples, strict=True)):
            seq = running.get(span.request_id)
            if seq is not None and seq.land(span):  # else it ended or started over while the pass ran
                samples: Ordered[Sampled] = sampled
                told: Ordered[TokenLogprob] = scores[number] if scores else ()
                if seq.thoughts is not None:
                    span, samples, told = seq.keep(span, samples, told, result.thoughts[number])
                if told:
                    self._absorb_scores(seq, told, events)
                self._absorb_span(seq, one, span, samples, events)

    def _absorb_scores(self, seq: RequestState, scores: Ordered[TokenLogprob], events: list[Event]) -> None:
        new_scores = seq.absorb_scores(scores)
        if new_scores:
            events.append(PromptScored(seq.request_id, new_scores))

    def _absorb_span(
        self, seq: RequestState, one: Pass, span: Span, samples: Ordered[Sampled], events: list[Event]
    ) -> None:
        if seq.failure is None:
            if one.kind is PassKind.CANONICAL:
                committed = seq.absorb_canonical(span, samples, one.certified)
                if span.num_sampled > 1 and span.token_ids[-1] == UNKNOWN_TOKEN:
                    self._learn(seq)
            else:
                committed = seq.absorb_fast(span, samples)
            if seq.only_scored:
                seq.finish_scoring()
            if seq.thoughts is not None:
                self._absorb_thoughts(seq, events)
            if committed:
                events.append(TokensCommitted(seq.request_id, committed))
        if seq.computed_len >= seq.trail.next_at and self.config.prefix_cache:
            seq.index_pages()
        phase = seq.phase
        if span.with_checksums:
            self._spot_checker.note(span, samples)
            self._spot_checker.settle(seq, ended=phase not in LIVE)
        if phase is not Phase.DECODE:
            self._settle(seq, phase, events, sampled=bool(samples))

    def _learn(self, seq: RequestState) -> None:
        """A verdict on candidates that were in flight with their window. What counted on it is over if it fell; its pages
        stay until nothing writes to them any more."""
        self._trust = adapt_trust(self._trust, stood=not seq.fell)
        if seq.fell and seq.flying:
            seq.forget_flying()
            seq.page_table.pin()
            self._flights[-1].leftovers.append((seq.page_table, -1))

    def _absorb_thoughts(self, seq: RequestState, events: list[Event]) -> None:
        thoughts = seq.settle_thoughts()
        if thoughts:
            events.append(ThoughtsCommitted(seq.request_id, thoughts))

    def _settle(self, seq: RequestState, phase: Phase, events: list[Event], *, sampled: bool) -> None:
        if seq.failure is not None:
            events.append(self._retire(seq, "error", seq.failure))
            if seq.is_lost and self.config.certified_sizes:  # as good a proof as a check
                self._revoke()
                events.append(CertificateChecked(0, f"request {seq.request_id} came out otherwise"))
        elif phase is Phase.FINISHED:
            assert seq.finish_reason is not None
            events.append(self._retire(seq, seq.finish_reason))
        elif phase is Phase.VERIFY:
            if not seq.flying:  # else these are the candidates, and their window follows
                seq.move(Phase.DECODE)
        elif phase is Phase.PREFILL and sampled and not seq.needs_prefill:
            seq.move(Phase.DECODE)

    def _revoke(self) -> None:
        """The certificate is wrong: forget all pages, verify from now on, and every answer again from its prompt."""
        self.config = replace(self.config, certified_sizes=())
        self.prefix_cache.clear()
        self._spot_checker.forget_due()
        for flight in self._flights:
            flight.is_stale = True
        for seq in (*self._queue.queue, *self._queue.by_arrival()):
            self._spot_checker.forget(seq)
            if not seq.deterministic:
                seq.distrust_pages()
                continue
            was_running = self._queue.is_running(seq)
            self._leave(seq)
            seq.start_over()
            if was_running:
                self._queue.enqueue(seq)

    def _end(
        self, seq: RequestState, phase: Phase, reason: FinishReason, failure: AnswerFailed | None = None
    ) -> RequestEnded:
        seq.move(phase)
        return self._retire(seq, reason, failure)

    def _retire(
        self, seq: RequestState, reason: FinishReason, failure: AnswerFailed | None = None
    ) -> RequestEnded:
        self._leave(seq)
        seq.drop_candidates()
        self._spot_checker.forget(seq)
        seq.give_up_pages()
        error, code = (None, None) if failure is None else (str(failure), failure.code)
        return RequestEnded(seq.request_id, reason, seq.determinism, seq.final_stats(), error, code)

    def _leave(self, seq: RequestState) -> None:
        """The sequence runs no more. Its lane and its pages stay until no plan in flight names them."""
        lane = self._queue.remove(seq)
        if self._flights and (seq.flying or seq.page_table.is_pinned):
            seq.page_table.pin()
            self._flights[-1].leftovers.append((seq.page_table, lane))
        else:
            self._queue.free_lane(lane)

    def _land(self, flight: InFlightPlan) -> None:
        """Nothing computes for this plan any more."""
        self._spot_checker.close(flight.checks)
        for table, lane in flight.leftovers:
            table.unpin()
            self._queue.free_lane(lane)

    # Integrity

    def check(self) -> None:
        """Raise if a page leaked, is held twice by mistake, or a length contradicts another."""
        checks = [*self._spot_checker.due, *(check for flight in self._flights for check in flight.checks)]
        leftovers = [one for flight in self._flights for one in flight.leftovers]
        tables = [seq.page_table for seq in (*self._queue.queue, *self._queue.running.values())]
        tables += [check.table for check in checks] + [table for table, _ in leftovers]
        holders: dict[int, int] = {}
        for pages in (
            *(table.pages for table in {id(table): table for table in tables}.values()),
            *(check.scratch for check in checks),
        ):
            for page in pages:
                holders[page] = holders.get(page, 0) + 1
        self.pool.check(holders)
        self.prefix_cache.check()
        self._queue.check_lanes([lane for _, lane in leftovers])
        for seq in self._queue.running.values():
            self._check_lengths(seq, holders)

    def _check_lengths(self, seq: RequestState, holders: dict[int, int]) -> None:
        assert seq.canonical_len <= seq.computed_len <= seq.tokens.total_len
        written_from = seq.canonical_len if seq.deterministic else seq.computed_len
        for page in seq.page_table.pages[written_from // self.pool.page_size :]:
            assert holders[page] == 1, f"page {page} is shared and still to be written by {seq.request_id}"
        if seq.flying:
            assert seq.flying[-1].stop <= min(seq.page_table.capacity, seq.expected_len)
        elif seq.deterministic and seq.phase is not Phase.PREFILL:
            assert seq.canonical_len == seq.tokens.committed_len - 1, (
                "the last committed token opens the next window"
            )
