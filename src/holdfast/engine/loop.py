"""The engine: the only loop. A step is plan, run, absorb; events go to the answer they belong to.

Not safe for several threads: one thread owns an engine. `handle.py` puts one behind a thread of its own.
"""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.arithmetic.certificate import Certificate
from holdfast.core.events import Event, TokensCommitted
from holdfast.core.params import SamplingParams, show
from holdfast.core.plan import PassKind, PassResult, Plan
from holdfast.core.request import Request
from holdfast.core.result import Result
from holdfast.engine.answer import Answer, Delta
from holdfast.engine.detokenizer import Detokenizer
from holdfast.engine.tokenizer import Tokenizer
from holdfast.errors import DeterminismRefused, InvalidRequest, PromptTooLong
from holdfast.kv.pool import PagePool
from holdfast.schedule.policy import SchedulerConfig
from holdfast.schedule.scheduler import Scheduler

_log = logging.getLogger(__name__)


class PlanRunner(Protocol):
    """Whatever runs plans; in production `run.runner.Runner`."""

    def run(self, plan: Plan) -> Sequence[PassResult]: ...


@dataclass(frozen=True)
class Limits:
    """What a request must keep to."""

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    refusal: str | None  # why deterministic requests are refused, or None


@dataclass(frozen=True)
class Update:
    """News of one request: a piece of its answer, and at the end its result."""

    request_id: int
    delta: Delta
    result: Result | None = None


@dataclass(slots=True)
class Counters:
    """What the engine did since it started. shared counts canonical passes with rows of several sequences."""

    steps: int = 0
    fast_passes: int = 0
    canonical_passes: int = 0
    certified_passes: int = 0
    shared_canonical_passes: int = 0
    rows: int = 0


class Engine:
    """Requests in, updates out."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PlanRunner,
        tokenizer: Tokenizer,
        limits: Limits,
        certificate: Certificate | None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.tokenizer = tokenizer
        self.limits = limits
        self.certificate = certificate
        self.counters = Counters()
        self._answers: dict[int, Answer] = {}
        self._next_id = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def prepare(self, prompt: str | Sequence[int], params: SamplingParams) -> Request:
        """A valid request, or an error that says what is wrong. Nothing is queued yet."""
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}")
        prompt_ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else _token_ids(prompt)
        self._check(prompt_ids, params)
        self.scheduler.require_room(len(prompt_ids) + params.max_tokens)
        self._next_id += 1
        return Request(self._next_id, prompt_ids, params, _seed(params), self.limits.eos_ids)

    def submit(self, request: Request) -> None:
        """Queue a prepared request."""
        answer = Answer(request, Detokenizer(self.tokenizer, request.prompt_ids))
        self.scheduler.submit(request, answer)
        self._answers[request.request_id] = answer

    def abort(self, request_id: int) -> list[Update]:
        return self._publish(self.scheduler.abort(request_id))

    def step(self) -> list[Update]:
        """One plan, run and absorbed. A pass that raises ends the requests in it and no other."""
        plan = Plan(())
        try:
            plan = self.scheduler.plan()
            if not plan:
                return []
            self._count(plan)
            results = self.runner.run(plan)
        except Exception as error:
            if not plan:
                raise  # a broken invariant of the scheduler, not of a pass
            _log.exception("a pass failed")
            return self._publish(self.scheduler.fail(plan, f"a pass failed: {type(error).__name__}: {error}"))
        except BaseException:  # an interrupt: the plan is given up, so that the next one can be made
            self._publish(self.scheduler.fail(plan, "interrupted"))
            raise
        return self._publish(self.scheduler.absorb(plan, results))

    def restarted(self, schedule: SchedulerConfig, num_pages: int | None = None) -> "Engine":
        """The same model under another schedule, with an empty cache. The old engine must not run any more."""
        pool = self.scheduler.pool
        assert num_pages is None or num_pages <= pool.num_pages, "the KV store does not grow"
        scheduler = Scheduler(schedule, PagePool(num_pages or pool.num_pages, pool.page_size))
        return Engine(scheduler, self.runner, self.tokenizer, self.limits, self.certificate)

    def check(self) -> None:
        """The integrity of pages and lengths; for idle moments and tests."""
        self.scheduler.check()

    def _publish(self, events: Sequence[Event]) -> list[Update]:
        updates = []
        for event in events:
            if isinstance(event, TokensCommitted):
                delta = self._answers[event.request_id].take(event.samples)
                updates.append(Update(event.request_id, delta))
            else:
                delta, result = self._answers.pop(event.request_id).finish(event)
                updates.append(Update(event.request_id, delta, result))
        return updates

    def _count(self, plan: Plan) -> None:
        self.counters.steps += 1
        for one in plan.passes:
            canonical = one.kind is PassKind.CANONICAL
            self.counters.fast_passes += not canonical
            self.counters.canonical_passes += canonical
            self.counters.certified_passes += one.certified
            self.counters.shared_canonical_passes += canonical and len(one.spans) > 1
            self.counters.rows += one.padded_rows

    def _check(self, prompt_ids: tuple[int, ...], params: SamplingParams) -> None:
        limits = self.limits
        if not prompt_ids:
            raise InvalidRequest("the prompt is empty; give at least one token")
        for token_id in (*prompt_ids, *params.stop_ids):
            if not 0 <= token_id < limits.vocab_size:
                raise InvalidRequest(
                    f"token id {show(token_id)} is not in the vocabulary of {limits.vocab_size} tokens"
                )
        if len(prompt_ids) + params.max_tokens > limits.max_model_len:
            raise PromptTooLong(
                f"the prompt has {len(prompt_ids)} tokens and max_tokens is {params.max_tokens}, together more than "
                f"the context of {limits.max_model_len}; shorten the prompt or lower max_tokens"
            )
        if params.deterministic and limits.refusal is not None:
            raise DeterminismRefused(limits.refusal)


def _token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise InvalidRequest(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
    for token_id in prompt:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise InvalidRequest(f"a prompt is text or a list of token ids; {show(token_id)} is no token id")
    return tuple(prompt)


def _seed(params: SamplingParams) -> int:
    """The request's own seed; one made for it if it samples without one; 0 for greedy, which draws nothing."""
    if params.seed is not None:
        return params.seed
    return 0 if params.greedy else secrets.randbits(63)
