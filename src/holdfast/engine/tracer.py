"""Traces of engine steps for the inspector: plain data, made only while an inspector page is open.

A tracer observes the live requests after the plan, between the passes of an update and after the
update, and compares with its last observation. Candidates that were there and are now neither
committed nor candidates were rolled back. A tracer only reads, so no answer depends on it. It can
be attached at any time; its first trace has all live requests. With plans in flight, a trace
describes the plan whose results were processed.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.step_plan import Pass, StepPlan
from holdfast.scheduler.request_state import Phase, RequestState
from holdfast.scheduler.token_log import TokenLog

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

MAX_TRACED_TOKENS = 1024  # of one request in one trace; the last ones


@dataclass(frozen=True, slots=True)
class PassTrace:
    """One pass. spans are (request_id, start, num_tokens)."""

    kind: str  # fast, canonical, check
    certified: bool
    num_tokens: int
    num_tokens_padded: int
    spans: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One request (a branch, if it has several choices) after a step, and what the step changed.

    committed_ids are the tokens from position committed_start on, prompt included; they replace
    what earlier traces had from there on. rolled_back_ids were candidates from position
    rolled_back_start on. num_accepted counts the candidates that were accepted. first_id is the id
    of the first branch. extra: what `RequestExtension.shown` returns, () in a plain model.
    """

    request_id: int
    first_id: int
    deterministic: bool
    phase: str
    prompt_len: int
    cached_len: int
    committed_len: int
    canonical_len: int
    computed_len: int
    num_pages: int
    committed_start: int
    committed_ids: tuple[int, ...]
    candidate_ids: tuple[int, ...]
    num_accepted: int = 0
    rolled_back_start: int = 0
    rolled_back_ids: tuple[int, ...] = ()
    holder: str = ""
    extra: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step; or what happened between two steps, then without passes.

    requests are those that are new or changed. is_first: the tracer was just attached, and requests
    are all there are. ended are (request_id, finish reason). milliseconds are from plan to update.
    """

    step: int
    is_first: bool
    milliseconds: float
    passes: tuple[PassTrace, ...]
    requests: tuple[RequestTrace, ...]
    ended: tuple[tuple[int, str], ...]
    num_running: int
    num_waiting: int
    num_pages_used: int
    num_pages: int
    page_size: int


class _TrackedRequest:
    """A request at its last observation, and what happened since its last trace."""

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self._candidates = state.tokens.candidates
        self._committed_len = state.tokens.committed_len
        self._traced_len = 0
        self._last: tuple[object, ...] = ()
        self._num_accepted = 0
        self._rolled_back_start = 0
        self._rolled_back: tuple[int, ...] = ()

    def observe(self) -> None:
        tokens = self.state.tokens
        num_accepted, rolled_back = compare_candidates(self._candidates, self._committed_len, tokens)
        self._num_accepted += num_accepted
        if rolled_back:
            self._rolled_back_start = min(self._committed_len + num_accepted, tokens.committed_len)
            self._rolled_back = rolled_back
        self._candidates = tokens.candidates
        self._committed_len = tokens.committed_len
        self._traced_len = min(self._traced_len, tokens.committed_len)  # less, if it restarted

    def make_trace(self) -> RequestTrace | None:
        """Return the request now; None if it has not changed since its last trace."""
        state, tokens = self.state, self.state.tokens
        extra = () if state.extension is None else tuple(state.extension.shown(tokens.total_len))
        now = (
            *(state.phase, state.canonical_len, state.computed_len, len(state.page_table)),
            *(tokens.committed_len, self._candidates, extra, self._rolled_back),
        )
        if now == self._last:
            return None
        start = max(self._traced_len, tokens.committed_len - MAX_TRACED_TOKENS)
        trace = RequestTrace(
            request_id=state.request_id,
            first_id=state.request.request_id,
            deterministic=state.deterministic,
            phase=state.phase.value,
            prompt_len=tokens.prompt_len,
            cached_len=min(state.stats.cached_tokens, tokens.committed_len),
            committed_len=tokens.committed_len,
            canonical_len=state.canonical_len,
            computed_len=state.computed_len,
            num_pages=len(state.page_table),
            committed_start=start,
            committed_ids=tokens.ids(start, tokens.committed_len),
            candidate_ids=self._candidates,
            num_accepted=self._num_accepted,
            rolled_back_start=self._rolled_back_start,
            rolled_back_ids=self._rolled_back,
            holder=state.holder,
            extra=extra,
        )
        self._last = (*now[:-1], ())
        self._traced_len = tokens.committed_len
        self._num_accepted, self._rolled_back_start, self._rolled_back = 0, 0, ()
        return trace


class Tracer:
    """Traces one engine, in the engine's thread."""

    def __init__(self, engine: "Engine") -> None:
        self._scheduler = engine.scheduler
        self._counters = engine.counters
        self._tracked: dict[int, _TrackedRequest] = {}
        self._in_flight: list[tuple[StepPlan, int, float]] = []  # plan, its step, when it was made
        self._traces: list[StepTrace] = []
        self.observe()
        self._add_trace((), is_first=True)

    def take(self) -> list[StepTrace]:
        traces, self._traces = self._traces, []
        return traces

    def on_plan(self, plan: StepPlan) -> None:
        """A plan was made.

        Candidates of the n-gram proposer exist now and are judged before the step ends.
        """
        self._in_flight.append((plan, self._counters.num_steps, time.perf_counter()))
        self.observe()

    def on_update(self, plan: StepPlan) -> None:
        """The results of a plan were processed, or its requests failed."""
        step, planned_at = self._counters.num_steps, time.perf_counter()
        for index, (planned, planned_step, at) in enumerate(self._in_flight):
            if planned is plan:  # else it was made before the tracer was attached
                step, planned_at = planned_step, at
                del self._in_flight[: index + 1]
                break
        self.observe()
        self._add_trace(plan.passes, step=step, milliseconds=1e3 * (time.perf_counter() - planned_at))

    def on_abort(self) -> None:
        self.observe()
        self._add_trace(())

    def observe(self) -> None:
        for state in self._scheduler.requests:
            tracked = self._tracked.get(state.request_id)
            if tracked is None or tracked.state is not state:
                self._tracked[state.request_id] = _TrackedRequest(state)
        for tracked in self._tracked.values():
            tracked.observe()

    def _add_trace(
        self,
        passes: tuple[Pass, ...],
        *,
        step: int | None = None,
        milliseconds: float = 0.0,
        is_first: bool = False,
    ) -> None:
        requests = [tracked.make_trace() for tracked in self._tracked.values()]
        ended = [tracked.state for tracked in self._tracked.values() if not tracked.state.is_live]
        for state in ended:
            del self._tracked[state.request_id]
        pool = self._scheduler.pool
        self._traces.append(
            StepTrace(
                step=self._counters.num_steps if step is None else step,
                is_first=is_first,
                milliseconds=milliseconds,
                passes=tuple(_pass_trace(one) for one in passes),
                requests=tuple(one for one in requests if one is not None),
                ended=tuple((state.request_id, _finish_reason(state)) for state in ended),
                num_running=self._scheduler.num_running,
                num_waiting=self._scheduler.num_waiting,
                num_pages_used=pool.num_held,
                num_pages=pool.num_pages,
                page_size=pool.page_size,
            )
        )


def compare_candidates(
    candidates: tuple[int, ...], position: int, tokens: TokenLog
) -> tuple[int, tuple[int, ...]]:
    """Of the candidates there were from a position on: how many were accepted since, and which were
    rolled back.
    """
    if tokens.committed_len == position and tokens.candidates[: len(candidates)] == candidates:
        return 0, ()
    num_accepted = 0
    for candidate, committed in zip(candidates, tokens.ids(position, tokens.committed_len), strict=False):
        if candidate != committed:
            break
        num_accepted += 1
    return num_accepted, candidates[num_accepted:]


def _pass_trace(one: Pass) -> PassTrace:
    spans = tuple((span.request_id, span.start, span.num_tokens) for span in one.spans)
    return PassTrace(one.kind.value, one.certified, one.num_tokens, one.num_tokens_padded, spans)


def _finish_reason(state: RequestState) -> str:
    if state.phase is Phase.FINISHED:
        return state.finish_reason or "stop"
    return "abort" if state.phase is Phase.ABORTED else "error"
