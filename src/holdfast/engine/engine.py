"""The engine: the only loop. A step is plan, run, absorb; events go to the answer they belong to.

With `async_scheduling` a plan is started and what it gives read a step later, when the next is under way: the
device never waits for what is done here.

Not safe for several threads: one thread owns an engine. `handle.py` puts one behind a thread of its own.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.certification.certificate import Certificate, delete_certificate
from holdfast.core.events import CertificateChecked, Event
from holdfast.core.grammar import Grammar
from holdfast.core.record_class import record_class
from holdfast.core.request import Request
from holdfast.core.results import Result, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import PassKind, PassResult, StepPlan, ThoughtIds
from holdfast.engine.input_processor import Grammars, InputProcessor, Limits
from holdfast.engine.output import Answer, Delta
from holdfast.engine.result_collector import ResultCollector
from holdfast.engine.tracer import Tracer
from holdfast.kv_cache.page_pool import PagePool
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.receipt import ReceiptFactory
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class _PassFailed(Exception):
    """A pass of this plan raised."""

    def __init__(self, plan: StepPlan, message: str) -> None:
        super().__init__(message)
        self.plan, self.message = plan, message


class PlanRunner(Protocol):
    """Whatever runs plans; in production `run.runner.Runner`."""

    def run(self, plan: StepPlan) -> Sequence[PassResult]: ...

    def start(self, plan: StepPlan) -> Callable[[], Sequence[PassResult]]:
        """Begin, and return at once; the callable waits for what it gives. Plans are waited for in the order they came."""
        ...


@record_class
class Update:
    """News of one request: a piece of one of its answers, and at the end its result."""

    request_id: int
    delta: Delta
    result: Result | None = None


@dataclass(slots=True)
class Counters:
    """What the engine did since it started. shared counts canonical passes with rows of several sequences; a revocation is a
    spot check that found the certificate wrong.
    """

    steps: int = 0
    fast_passes: int = 0
    canonical_passes: int = 0
    certified_passes: int = 0
    shared_canonical_passes: int = 0
    rows: int = 0
    spot_checks: int = 0
    spot_checked_rows: int = 0
    revocations: int = 0


class Engine:
    """Requests in, updates out."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PlanRunner,
        tokenizer: Tokenizer,
        limits: Limits,
        certificate: Certificate | None,
        grammars: Grammars,
        receipts: ReceiptFactory,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.tokenizer = tokenizer
        self.limits = limits
        self.certificate = certificate
        self.grammars = grammars
        self.receipts = receipts
        self.counters = Counters()
        self.tracer: Tracer | None = None  # while somebody watches
        self.revocation: str | None = None  # why the certificate is void, once it is
        self.wants_receipt: Callable[[int], bool] = lambda request_id: (
            True
        )  # a server is asked for few of them
        self._replies: dict[int, ResultCollector] = {}  # by the request ids of their branches
        self._started: deque[tuple[StepPlan, Callable[[], Sequence[PassResult]]]] = deque()  # oldest first
        self._maker = InputProcessor(tokenizer, limits, grammars, scheduler.require_room)

    @property
    def fingerprint(self) -> Fingerprint:
        """All that decides this engine's bits. Waits for it where the weights are still being hashed."""
        return self.receipts.fingerprint

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def has_requests(self) -> bool:
        """Whether anybody waits for an answer; without one there may still be a check to run."""
        return self.scheduler.num_waiting + self.scheduler.num_running > 0

    def prepare(
        self, prompt: str | Sequence[int], params: SamplingParams, echo_text: str | None = None
    ) -> Request:
        """A valid request, or an error that says what is wrong. Nothing is queued yet; any thread may ask."""
        return self._maker.make(prompt, params, echo_text)

    def prepare_score(
        self,
        prompt: str | Sequence[int],
        completion: str | Sequence[int],
        params: SamplingParams,
    ) -> Request:
        """A request for the logprobs of a completion behind a prompt, by `score_params`."""
        return self._maker.make_score(prompt, completion, params)

    def submit(self, request: Request) -> None:
        """Queue a prepared request."""
        branches = request.branches()
        answers = {branch.request_id: self._answer(branch) for branch in branches}
        reply = ResultCollector(request, answers)
        for branch in branches:
            self.scheduler.submit(branch, answers[branch.request_id], _grammar(request, branch))
            self._replies[branch.request_id] = reply

    def _answer(self, branch: Request) -> Answer:
        return Answer(branch, Detokenizer(self.tokenizer, branch.prompt_ids))

    def abort(self, request_id: int) -> list[Update]:
        """End a request, all its answers."""
        reply = self._replies.get(request_id)
        open_ids = reply.open_ids if reply is not None else ()
        updates = [update for branch in open_ids for update in self._publish(self.scheduler.abort(branch))]
        if self.tracer is not None and updates:
            self._trace(self.tracer.ended)
        return updates

    def step(self) -> list[Update]:
        """One plan made, and one absorbed, maybe an earlier one. A pass that raises ends the requests in flight, no other."""
        try:
            plan = self._launch()
            if not self._started or (plan and len(self._started) <= self.scheduler.config.async_scheduling):
                return []
            results = self._read()
        except _PassFailed as failed:
            return self._give_up(failed.plan, failed.message)
        plan, _ = self._started.popleft()
        events = self._absorb(plan, results)
        try:
            if self.scheduler.config.async_scheduling and not self._started:
                self._launch()  # before anybody is told: the device waits for this
        except _PassFailed as failed:
            return self._end_step(plan, events) + self._give_up(failed.plan, failed.message)
        return self._end_step(plan, events)

    def _launch(self) -> StepPlan:
        """Make the next plan and start it, if there is anything to do."""
        plan = self.scheduler.plan()
        if plan:
            self._count(plan)
            if self.tracer is not None:
                self._trace(self.tracer.planned, plan)
            with self._failing(plan):
                if self.scheduler.config.async_scheduling:
                    self._started.append((plan, self.runner.start(plan)))
                else:
                    results = self.runner.run(plan)
                    self._started.append((plan, lambda: results))
        return plan

    def _read(self) -> Sequence[PassResult]:
        """What the oldest plan gave."""
        plan, wait = self._started[0]
        with self._failing(plan):
            return wait()

    @contextmanager
    def _failing(self, plan: StepPlan) -> Iterator[None]:
        """Whatever a pass of this plan raises is `_PassFailed`; at an interrupt all that is in flight is given up, so that
        the next plan can be made."""
        try:
            yield
        except Exception as error:
            _log.exception("a pass failed")
            raise _PassFailed(plan, f"a pass failed: {type(error).__name__}: {error}") from error
        except BaseException:
            self._give_up(plan, "interrupted")
            raise

    def _absorb(self, plan: StepPlan, results: Sequence[PassResult]) -> list[Event]:
        tracer = self.tracer
        between = None if tracer is None else (lambda: self._trace(tracer.look))
        return self.scheduler.update(plan, results, between)

    def _give_up(self, plan: StepPlan, message: str) -> list[Update]:
        """A pass of this plan raised. Nothing that was started is awaited any more, but for the device to be done with it."""
        started, self._started = self._started, deque()
        for other, wait in started:
            if other is not plan:
                with suppress(Exception):
                    wait()
        return self._end_step(plan, self.scheduler.fail(plan, message))

    def restarted(
        self, schedule: SchedulerConfig, num_pages: int | None = None, grammars: Grammars | None = None
    ) -> "Engine":
        """The same model under another schedule, with an empty cache. The old engine must not run any more."""
        pool = self.scheduler.pool
        assert num_pages is None or num_pages <= pool.num_pages, "the KV store does not grow"
        scheduler = Scheduler(schedule, PagePool(num_pages or pool.num_pages, pool.page_size))
        return Engine(
            scheduler,
            self.runner,
            self.tokenizer,
            self.limits,
            self.certificate,
            grammars or self.grammars,
            self.receipts,
        )

    def check(self) -> None:
        """The integrity of pages and lengths; for idle moments and tests."""
        self.scheduler.check()

    def _end_step(self, plan: StepPlan, events: Sequence[Event]) -> list[Update]:
        if self.tracer is not None:
            self._trace(self.tracer.absorbed, plan)
        return self._publish(events)

    def _trace(self, tell: Callable[..., None], *what: StepPlan) -> None:
        """Whoever watches must not harm anybody."""
        try:
            tell(*what)
        except Exception:
            _log.exception("a step could not be told; nobody watches any more")
            self.tracer = None

    def _publish(self, events: Sequence[Event]) -> list[Update]:
        updates = []
        for event in events:
            if isinstance(event, CertificateChecked):
                self._note_check(event)
                continue
            reply = self._replies[event.request_id]
            delta = reply.take(event, self._spell)
            if reply.result is not None:
                self._close(reply)
            if delta is not None or reply.result is not None:
                updates.append(Update(reply.request.request_id, delta or Delta("", ()), reply.result))
        return updates

    def _spell(self, chunk: int, token_ids: ThoughtIds) -> Thought:
        """A thought for people to read."""
        position = (chunk + 1) * self.scheduler.config.chunk_len - 1
        # A model may have more ids than its tokenizer; those behind have no text.
        known = [token_id for token_id in token_ids if token_id < self.tokenizer.vocab_size]
        return Thought(chunk, position, self.tokenizer.decode(known).strip(), token_ids)

    def _close(self, reply: ResultCollector) -> None:
        """All answers of a request are there."""
        assert reply.result is not None
        certificate = self.certificate.digest if self.certificate is not None else None
        receipt = None
        try:
            if self.wants_receipt(reply.request.request_id):
                receipt = self.receipts(reply.request, reply.result, reply.logprobs, certificate)
        except Exception:  # the answer is worth more than its receipt
            _log.exception("the receipt of request %d could not be made", reply.request.request_id)
        reply.result = replace(reply.result, receipt=receipt)
        for branch in reply.answers:
            del self._replies[branch]

    def _note_check(self, event: CertificateChecked) -> None:
        self.counters.spot_checks += event.num_tokens > 0
        self.counters.spot_checked_rows += event.num_tokens
        if event.mismatch is None:
            return
        self.counters.revocations += 1
        self.revocation = event.mismatch
        _log.error(
            "the certificate is revoked: a certified pass gave other bits than the reference (%s); from now on every "
            "deterministic answer is verified, and those under way are verified from their prompts",
            event.mismatch,
        )
        certificate, self.certificate = self.certificate, None
        if certificate is not None:
            delete_certificate(certificate.key)
        for reply in {id(reply): reply for reply in self._replies.values()}.values():
            if reply.request.params.deterministic:
                self._ask_again(reply)

    def _ask_again(self, reply: ResultCollector) -> None:
        """The scheduler starts over what is live. What ended, but belongs to a reply that is not complete, is asked again."""
        branches = {branch.request_id: branch for branch in reply.request.branches()}
        for number in reply.ended_ids:
            branch = branches[number]
            answer = self._answer(branch)
            reply.doubt(number, answer)
            grammar = _grammar(reply.request, branch)
            if grammar is not None:
                grammar.restart()
            self.scheduler.submit(branch, answer, grammar)

    def _count(self, plan: StepPlan) -> None:
        self.counters.steps += 1
        for one in plan.passes:
            canonical = one.kind is PassKind.CANONICAL
            self.counters.fast_passes += one.kind is PassKind.FAST
            self.counters.canonical_passes += canonical
            self.counters.certified_passes += one.certified
            self.counters.shared_canonical_passes += canonical and len(one.spans) > 1
            self.counters.rows += one.num_tokens_padded


def _grammar(request: Request, branch: Request) -> Grammar | None:
    return request.grammars[branch.index] if request.grammars else None
