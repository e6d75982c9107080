"""A scheduler with a scripted model, driven step by step."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from scripted import EOS, ScriptedRunner, chain, context_of, next_token

from holdfast.core.events import Event, RequestEnded, TokensCommitted
from holdfast.core.request import Prepared, Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import PassKind, PassResult, Span, StepPlan
from holdfast.core.structured_output import Grammar
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler.policy import DeterminismMode, SchedulerConfig, Speculation
from holdfast.scheduler.request_state import RequestState
from holdfast.scheduler.scheduler import Scheduler

PAGE_SIZE = 4
ROWS = 8


class StopAt:
    """Text that holds a stop string once it has seen so many tokens."""

    def __init__(self, num_tokens: int | None = None) -> None:
        self.seen: list[int] = []
        self._num_tokens = num_tokens

    def push(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return self._num_tokens is not None and len(self.seen) >= self._num_tokens


class Driver:
    def __init__(
        self,
        mode: DeterminismMode = "verify",
        *,
        num_pages: int = 64,
        seqs: int = 4,
        rows: int = 64,
        certified: Sequence[int] = (),
        error_rate: float = 0.0,
        cache: bool = True,
        async_scheduling: bool = False,
        speculation: Speculation = "ngram",
    ) -> None:
        config = SchedulerConfig(
            seqs,
            rows,
            ROWS,
            mode,
            tuple(certified),
            cache,
            async_scheduling=async_scheduling,
            speculation=speculation,
        )
        self.scheduler = Scheduler(config, PagePool(num_pages, PAGE_SIZE))
        self.runner = ScriptedRunner(PAGE_SIZE, error_rate, seed=1)
        self.answers: dict[int, list[int]] = {}
        self.ended: dict[int, RequestEnded] = {}
        self.texts: dict[int, StopAt] = {}
        self.started: list[int] = []  # requests in the order of their first pass
        self.others: list[Event] = []  # scores and checks
        self.steps = 0
        self.in_flight: deque[tuple[StepPlan, Callable[[], list[PassResult]]]] = deque()

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        *,
        stop_at: int | None = None,
        grammar: Grammar | None = None,
        scope: Mapping[str, Any] = MappingProxyType({}),
        **params: object,
    ) -> int:
        """scope: further fields of the request."""
        number = len(self.answers)
        settings = {"deterministic": True, "ignore_eos": True, "temperature": 0, **params}
        sampling = SamplingParams(max_tokens=max_tokens, **settings)  # type: ignore[arg-type]
        request = Request(number, tuple(prompt), sampling, 0, **scope)
        grammars = () if grammar is None else (grammar,)
        self.answers[number] = []
        self.texts[number] = StopAt(stop_at)
        self.scheduler.submit(Prepared(request, frozenset({EOS}), (), grammars), self.texts[number])
        return number

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan()
        self.scheduler.check()
        for one in plan.passes:
            for span in one.spans:
                if span.request_id not in self.started:
                    self.started.append(span.request_id)
        return plan

    def update(self, plan: StepPlan) -> list[Event]:
        events = self.note(self.scheduler.update(plan, self.runner.run(plan)))
        self.scheduler.check()
        self.steps += 1
        return events

    def step(self) -> list[Event]:
        """As the engine does it: a plan is read at once, or with async_scheduling when the next is started."""
        if not self.scheduler.config.async_scheduling:
            return self.update(self.plan())
        self.steps += 1
        plan = self.start()
        if self.in_flight and (not plan or len(self.in_flight) > self.scheduler.config.async_scheduling):
            return self.read()
        return []

    def start(self) -> StepPlan:
        plan = self.plan()
        if plan:
            self.in_flight.append((plan, self.runner.start(plan)))
        return plan

    def read(self) -> list[Event]:
        """Read the oldest plan in flight."""
        plan, wait = self.in_flight.popleft()
        events = self.note(self.scheduler.update(plan, wait()))
        self.scheduler.check()
        return events

    def finish(self, limit: int = 2000) -> None:
        while len(self.in_flight) > self.scheduler.config.async_scheduling:
            self.read()
        while self.scheduler.has_work:
            self.step()
            assert self.steps < limit, "the schedule does not end"
        assert self.scheduler.pool.num_held == 0

    def note(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, TokensCommitted):
                self.answers[event.request_id].extend(sample.token_id for sample in event.samples)
            elif isinstance(event, RequestEnded):
                self.ended[event.request_id] = event
            else:
                self.others.append(event)
        return events

    def state(self, number: int) -> RequestState:
        return self.scheduler._queue.running[number]

    def canonical_passes(self) -> list[int]:
        """The padded batch size of every uncertified canonical pass."""
        return [
            one.num_tokens_padded
            for one in self.runner.passes
            if one.kind is PassKind.CANONICAL and not one.certified
        ]


def spans_of(plan: StepPlan, number: int) -> list[Span]:
    return [span for one in plan.passes for span in one.spans if span.request_id == number]


def truth(prompt: Sequence[int], count: int) -> list[int]:
    """The first tokens of the canonical answer."""
    context, output = context_of(tuple(prompt)), []
    for _ in range(count):
        output.append(next_token(context))
        context = chain(context, output[-1])
    return output
