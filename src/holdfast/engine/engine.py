"""The engine. A step plans passes, runs them and processes their output.

With `async_scheduling` a step starts the next plan before it reads the results of the one before,
so that the device does not wait for the host.

Not thread-safe: one thread owns an engine, as a rule that of an `EngineLoop`.
"""

import logging
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol, Unpack

from holdfast.certification.certificate import Certificate
from holdfast.certification.certification import Progress
from holdfast.core.cancel_token import CancelToken
from holdfast.core.events import CertificateChecked, Event, RequestEnded, TokensCommitted
from holdfast.core.request import Prepared, Request, RequestOptions
from holdfast.core.results import Delta, RequestOutput, with_changes
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import PassKind, PassResult, StepPlan
from holdfast.engine.answer_output import RequestAnswers
from holdfast.engine.background_work import BackgroundWork
from holdfast.engine.input_processor import GrammarFactory, InputProcessor, Prompt, RequestLimits
from holdfast.engine.status import STEP_SIZES, CertificateState, EngineCounters, EngineStatus
from holdfast.engine.tracer import Tracer
from holdfast.errors import DeterminismRefused, EngineStopped
from holdfast.kv_cache.page_pool import PagePool
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.receipt import ReceiptFactory
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from holdfast.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class _PlanFailed(Exception):
    """A pass of this plan raised."""

    def __init__(self, plan: StepPlan, message: str) -> None:
        super().__init__(message)
        self.plan, self.message = plan, message


class PlanRunner(Protocol):
    """Runs plans. In production a `ModelRunner`; tests run scripted models and inject faults."""

    def run(self, plan: StepPlan) -> Sequence[PassResult]: ...

    def start(self, plan: StepPlan) -> Callable[[], Sequence[PassResult]]:
        """Start a plan and return at once.

        The callable waits for its results; plans are read in the order they started.
        """


class Engine:
    """Takes prepared requests, gives their outputs step by step.

    An exception in a step leaves it unusable, unless a pass raised it. Whoever steps it where an
    interrupt can come must end then.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PlanRunner,
        tokenizer: Tokenizer,
        limits: RequestLimits,
        grammars: GrammarFactory,
        receipts: ReceiptFactory,
        background: BackgroundWork | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.tokenizer = tokenizer
        self.limits = limits
        self.grammars = grammars
        self.receipts = receipts
        self.background = background or BackgroundWork()
        self.start_up_seconds: Mapping[str, float] = {}  # of each phase of building it
        self.counters = EngineCounters()
        self.tracer: Tracer | None = None  # set while an inspector page is open
        self.before_pass: Callable[[], None] | None = None  # called when a plan is made, before it runs
        self._process_id = os.getpid()
        self._answers: dict[int, RequestAnswers] = {}  # by the ids of all their answers
        self._in_flight: deque[tuple[StepPlan, Callable[[], Sequence[PassResult]]]] = deque()  # oldest first
        self._input_processor = InputProcessor(
            tokenizer, limits, grammars, lambda max_len: self.scheduler.require_room(max_len)
        )
        self.background.attach(scheduler)

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that decides this engine's bits. Waits until the weights are hashed."""
        return self.receipts.fingerprint

    @property
    def status(self) -> EngineStatus:
        """The engine's numbers now. Only the thread that owns the engine may read it."""
        pool = self.scheduler.pool
        return EngineStatus(
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            num_pages_used=pool.num_held,
            num_pages_idle=pool.num_idle,
            num_pages=pool.num_pages,
            counters=replace(self.counters, steps_by_size=[*self.counters.steps_by_size]),
        )

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def has_requests(self) -> bool:
        """Return whether a request waits or runs. Without one there may still be a spot check to run."""
        return self.scheduler.num_waiting + self.scheduler.num_running > 0

    @property
    def certificate(self) -> Certificate | None:
        """Which batch sizes give the reference's bits, once that is known."""
        return self.background.certificate

    @property
    def revocation(self) -> str | None:
        return self.background.revocation

    @property
    def certificate_state(self) -> CertificateState:
        return self.background.state

    @property
    def has_background_work(self) -> bool:
        """Return whether an idle engine has graphs to capture, or a certificate to make or to adopt."""
        return self.background.is_left

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        completion: Prompt | None = None,
        **options: Unpack[RequestOptions],
    ) -> Prepared:
        """Make a valid request of a prompt, or raise an error that says what is wrong.

        It is not queued yet. Any thread may call this. With a completion the request scores it: its
        result has the logprobs of the completion's tokens (`score_params`).
        """
        return self.check_request(self._input_processor.read(prompt, params, completion, **options))

    def check_request(self, request: Request, token: CancelToken | None = None) -> Prepared:
        """Check a request that another process made, and compile its grammars. Any thread may call
        this. Raises `Cancelled` soon after the token is cancelled."""
        self._require_own_process()
        return self._input_processor.check(request, token)

    def prepares_quickly(self, params: SamplingParams) -> bool:
        """Return whether `check_request` need not compile a grammar nor tokenise bad words for these
        settings."""
        return self._input_processor.is_quick(params)

    def _require_own_process(self) -> None:
        """A forked child has none of the threads that compute, and would wait for them for ever."""
        if os.getpid() != self._process_id:
            raise EngineStopped(
                f"the engine was built in process {self._process_id}, and this one was forked from it; "
                "build the engine in the new process, and start that by spawn"
            )

    def submit(self, prepared: Prepared, *, wants_deltas: bool = True) -> None:
        """Queue a prepared request. Without wants_deltas its only output is the one with its result."""
        request = prepared.request
        self.scheduler.require_room(request.max_len)
        if request.deterministic and self.limits.refusal is not None:
            raise DeterminismRefused(self.limits.refusal)  # found out since it was prepared
        answers = RequestAnswers(prepared, self.scheduler, self.tokenizer, wants_deltas=wants_deltas)
        self._answers.update(dict.fromkeys(request.ids, answers))
        answers.submit()

    def abort(self, request_id: int) -> list[RequestOutput]:
        """End a request with all its choices."""
        answers = self._answers.get(request_id)
        open_ids = answers.open_ids if answers is not None else ()
        outputs = [output for id_ in open_ids for output in self._publish(self.scheduler.abort(id_))]
        if self.tracer is not None and outputs:
            self._trace(self.tracer.on_abort)
        return outputs

    def step(self) -> list[RequestOutput]:
        """Start one plan and process the output of one, which may be an earlier one.

        A pass that raises ends the requests in flight and no others.
        """
        if not self.background.is_left:
            return self._step()
        self.background.work_between_steps(self.scheduler)
        return self._adopt_certificate() + self._step()

    def work_in_background(self) -> list[RequestOutput]:
        """Capture a graph or make a part of the certificate, while there is nothing else to do."""
        if self.background.warm_up is not None:
            self.background.warm_up_next()
            return []
        self.background.certify(self.scheduler, is_idle=True)
        return self._adopt_certificate()

    def certify(self, progress: Progress | None = None) -> Certificate | None:
        """Make the certificate now, if there is none yet. Only for an engine without requests."""
        assert not self._in_flight and not self.has_requests
        self.background.finish(progress)
        self._adopt_certificate()
        return self.certificate

    def _adopt_certificate(self) -> list[RequestOutput]:
        certificate = None if self._in_flight else self.background.adopt(self.scheduler)
        if certificate is None:
            return []
        self.receipts.note_kernels(certificate.kernels)
        if certificate.refusal is None:
            return []
        self.limits = self._input_processor.limits = replace(self.limits, refusal=certificate.refusal)
        return self._publish(self.scheduler.refuse_deterministic(certificate.refusal))

    def _step(self) -> list[RequestOutput]:
        is_async = self.scheduler.config.async_scheduling
        try:
            plan = self._start_next()
            if not self._in_flight or (plan and is_async and len(self._in_flight) == 1):
                return []
            plan, wait = self._in_flight[0]
            with self._pass_errors(plan):
                results = wait()
        except _PlanFailed as failed:
            return self._fail_in_flight(failed.plan, failed.message)
        self._in_flight.popleft()
        tracer = self.tracer
        between = None if tracer is None else (lambda: self._trace(tracer.observe))
        events = self.scheduler.update(plan, results, between)
        try:
            if is_async and not self._in_flight:
                self._start_next()  # before the outputs are made: the device waits for this
        except _PlanFailed as failed:
            return self._end_step(plan, events) + self._fail_in_flight(failed.plan, failed.message)
        return self._end_step(plan, events)

    def _start_next(self) -> StepPlan:
        """Make the next plan and start it, unless it is empty. Before a certificate is adopted, the
        plans made without it are read."""
        if self.background.is_complete:
            return StepPlan(())
        plan = self.scheduler.plan()
        if plan:
            self._count(plan)
            if self.tracer is not None:
                self._trace(self.tracer.on_plan, plan)
            if self.before_pass is not None:
                self.before_pass()
            with self._pass_errors(plan):
                if self.scheduler.config.async_scheduling:
                    self._in_flight.append((plan, self.runner.start(plan)))
                else:
                    results = self.runner.run(plan)
                    self._in_flight.append((plan, lambda: results))
        return plan

    @contextmanager
    def _pass_errors(self, plan: StepPlan) -> Iterator[None]:
        """Turn what a pass of this plan raises into `_PlanFailed`."""
        try:
            yield
        except Exception as error:
            ids = sorted({span.request_id for one in plan.passes for span in one.spans})
            _log.exception("a pass of requests %s failed", ids)
            raise _PlanFailed(plan, f"a pass failed: {type(error).__name__}: {error}") from error

    def _fail_in_flight(self, plan: StepPlan, message: str) -> list[RequestOutput]:
        """End the requests in flight after a pass of this plan raised.

        The results of all plans in flight are discarded, once the device is done with them.
        """
        in_flight, self._in_flight = self._in_flight, deque()
        for other, wait in in_flight:
            if other is not plan:
                with suppress(Exception):
                    wait()
        return self._end_step(plan, self.scheduler.fail(plan, message))

    def restarted(self, schedule: SchedulerConfig, num_pages: int | None = None) -> "Engine":
        """Return the same model under another schedule, with an empty cache.

        The old engine must not be used any more.
        """
        pool = self.scheduler.pool
        assert num_pages is None or num_pages <= pool.num_pages, "the KV store does not grow"
        scheduler = Scheduler(schedule, PagePool(num_pages or pool.num_pages, pool.page_size))
        return Engine(
            scheduler,
            self.runner,
            self.tokenizer,
            self.limits,
            self.grammars,
            self.receipts,
            self.background,
        )

    def check(self) -> None:
        """Check the integrity of pages and lengths; for idle moments and tests."""
        self.scheduler.check()

    def _end_step(self, plan: StepPlan, events: Sequence[Event]) -> list[RequestOutput]:
        if self.tracer is not None:
            self._trace(self.tracer.on_update, plan)
        return self._publish(events)

    def _trace(self, callback: Callable[..., None], *plan: StepPlan) -> None:
        """Call the tracer. An error in it must not harm a request: it ends the tracing."""
        try:
            callback(*plan)
        except Exception:
            _log.exception("a step could not be traced; tracing is off")
            self.tracer = None

    def _publish(self, events: Sequence[Event]) -> list[RequestOutput]:
        """Return the outputs these events make. The end of a choice is in the delta of its last tokens."""
        outputs: list[RequestOutput] = []
        last_event: Event | None = None
        for event in events:
            if isinstance(event, CertificateChecked):
                self._on_certificate_checked(event)
                continue
            answers = self._answers[event.request_id]
            delta = answers.process(event)
            if answers.result is not None:
                self._finish(answers)
            if delta is not None or answers.result is not None:
                if delta is not None and _ends_tokens(last_event, event):
                    delta = outputs.pop().delta.ended_by(delta)
                output = (answers.request.request_id, delta or Delta(), answers.result)
                outputs.append(tuple.__new__(RequestOutput, output))
            last_event = event
        return outputs

    def _finish(self, answers: RequestAnswers) -> None:
        """All choices of a request have ended: its result can make its receipt."""
        assert answers.result is not None
        if answers.request.want_receipt:
            certificate = self.certificate.digest if self.certificate is not None else None
            receipt = self.receipts(answers.request, answers.result, answers.logprobs, certificate)
            answers.result = with_changes(answers.result, receipt=receipt)
        for id_ in answers.request.ids:
            del self._answers[id_]

    def _on_certificate_checked(self, event: CertificateChecked) -> None:
        self.counters.num_spot_checks += event.num_tokens > 0
        self.counters.num_spot_checked_tokens += event.num_tokens
        if event.mismatch is None:
            return
        self.counters.num_revocations += 1
        self.background.revoke(event.mismatch)
        for answers in {id(one): one for one in self._answers.values()}.values():
            if answers.request.deterministic:
                answers.recompute_ended()

    def _count(self, plan: StepPlan) -> None:
        counters = self.counters
        num_tokens = sum(one.num_tokens for one in plan.passes)
        counters.num_steps += 1
        counters.num_tokens += num_tokens
        counters.steps_by_size[bisect_left(STEP_SIZES, num_tokens)] += 1
        for one in plan.passes:
            canonical = one.kind is PassKind.CANONICAL
            counters.num_fast_passes += one.kind is PassKind.FAST
            counters.num_canonical_passes += canonical
            counters.num_certified_passes += one.certified
            counters.num_shared_canonical_passes += canonical and len(one.spans) > 1
            counters.num_padded_tokens += one.num_tokens_padded


def _ends_tokens(before: Event | None, event: Event) -> bool:
    """Return whether an answer ends with the tokens of the event before. After an error they stay apart:
    the client gets the tokens, then the error."""
    return (
        isinstance(event, RequestEnded)
        and event.reason in ("stop", "length")
        and isinstance(before, TokensCommitted)
        and before.request_id == event.request_id
    )
