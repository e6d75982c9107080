"""What a step did, for somebody who watches: plain data, made only while somebody does.

A tracer looks at the live sequences between plan and pass, between the passes that are taken in, and behind the verdict,
and compares with what it saw before: candidates that were there and are neither committed nor still candidates were rolled
back. It reads and changes nothing, so no answer depends on it. It may be attached at any moment; its first trace tells
everything there is. With plans in flight a trace is of the plan that was taken in.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.step_plan import Pass, StepPlan
from holdfast.scheduler.phase import Phase
from holdfast.scheduler.request_state import RequestState
from holdfast.scheduler.token_log import TokenLog

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

MOST_TOLD = 1024  # tokens of a sequence in one trace: of more, the last


@dataclass(frozen=True, slots=True)
class PassTrace:
    """One pass. spans are (request_id, start, num_tokens)."""

    kind: str  # fast, canonical, check
    certified: bool
    num_tokens: int
    num_tokens_padded: int
    spans: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class SequenceTrace:
    """One sequence behind the step, and what the step changed.

    committed_ids are the tokens from committed_from on, prompt included; what was told before of positions from there on
    holds no more. rolled_back_ids were candidates for the positions from rolled_back_from on; accepted counts those that
    stood. answers is the first request of those that share a prompt, as the n answers of one client's request do.
    """

    request_id: int
    answers: int
    deterministic: bool
    phase: str
    prompt_len: int
    cached_len: int
    committed_len: int
    canonical_len: int
    computed_len: int
    num_pages: int
    committed_from: int
    committed_ids: tuple[int, ...]
    candidate_ids: tuple[int, ...]
    accepted: int = 0
    rolled_back_from: int = 0
    rolled_back_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step, or what happened between two, then without passes.

    is_first: the tracer was just attached, so whatever is not told here is not there. Only sequences are told that are new or
    changed. ended are (request_id, finish reason). Milliseconds count from the plan to the verdict.
    """

    step: int
    is_first: bool
    milliseconds: float
    passes: tuple[PassTrace, ...]
    sequences: tuple[SequenceTrace, ...]
    ended: tuple[tuple[int, str], ...]
    num_running: int
    num_waiting: int
    pages_used: int
    num_pages: int
    page_size: int


class Seen:
    """A sequence as it was last looked at, and what happened to it since it was last told."""

    def __init__(self, seq: RequestState) -> None:
        self.seq = seq
        self._candidates = seq.tokens.candidates
        self._committed_len = seq.tokens.committed_len
        self._told_len = 0
        self._told: tuple[object, ...] = ()
        self._accepted = 0
        self._rolled_back_from = 0
        self._rolled_back: tuple[int, ...] = ()

    def look(self) -> None:
        """Note what became of the candidates since the last look."""
        log = self.seq.tokens
        accepted, dropped = settle(self._candidates, self._committed_len, log)
        self._accepted += accepted
        if dropped:
            self._rolled_back_from = min(self._committed_len + accepted, log.committed_len)
            self._rolled_back = dropped
        self._candidates = log.candidates
        self._committed_len = log.committed_len
        self._told_len = min(self._told_len, log.committed_len)  # less, if it started over

    def tell(self) -> SequenceTrace | None:
        """The sequence as it is now, unless nothing changed since it was told."""
        seq, log = self.seq, self.seq.tokens
        state = (
            *(seq.phase, seq.canonical_len, seq.computed_len, len(seq.page_table)),
            *(log.committed_len, self._candidates, self._rolled_back),
        )
        if state == self._told:
            return None
        start = max(self._told_len, log.committed_len - MOST_TOLD)
        told = SequenceTrace(
            request_id=seq.request_id,
            answers=seq.request.leader or seq.request_id,
            deterministic=seq.deterministic,
            phase=seq.phase.value,
            prompt_len=log.prompt_len,
            cached_len=min(seq.stats.cached_tokens, log.committed_len),
            committed_len=log.committed_len,
            canonical_len=seq.canonical_len,
            computed_len=seq.computed_len,
            num_pages=len(seq.page_table),
            committed_from=start,
            committed_ids=log.ids(start, log.committed_len),
            candidate_ids=self._candidates,
            accepted=self._accepted,
            rolled_back_from=self._rolled_back_from,
            rolled_back_ids=self._rolled_back,
        )
        self._told = (*state[:-1], ())
        self._told_len = log.committed_len
        self._accepted, self._rolled_back_from, self._rolled_back = 0, 0, ()
        return told


class Tracer:
    """Watches one engine. Its thread is the engine's."""

    def __init__(self, engine: "Engine") -> None:
        self._scheduler = engine.scheduler
        self._counters = engine.counters
        self._seen: dict[int, Seen] = {}
        self._planned: list[tuple[StepPlan, int, float]] = []  # those in flight: which step, and when
        self._told: list[StepTrace] = []
        self.look()
        self._tell((), is_first=True)

    def take(self) -> list[StepTrace]:
        """The traces since they were last taken."""
        told, self._told = self._told, []
        return told

    def on_plan(self, plan: StepPlan) -> None:
        """A plan was made. Candidates from a look-up are there now and judged before the step ends."""
        self._planned.append((plan, self._counters.num_steps, time.perf_counter()))
        self.look()

    def on_update(self, plan: StepPlan) -> None:
        """What the plan gave was taken in, or its requests were given up."""
        step, planned_at = self._counters.num_steps, time.perf_counter()
        for number, (planned, step_planned, at) in enumerate(self._planned):
            if planned is plan:  # else it was made before anybody watched
                step, planned_at = step_planned, at
                del self._planned[: number + 1]
                break
        self.look()
        self._tell(plan.passes, step=step, milliseconds=1e3 * (time.perf_counter() - planned_at))

    def on_abort(self) -> None:
        """Something ended between two steps."""
        self.look()
        self._tell(())

    def look(self) -> None:
        """Candidates may be judged before the next look."""
        for seq in self._scheduler.requests:
            seen = self._seen.get(seq.request_id)
            if seen is None or seen.seq is not seq:
                self._seen[seq.request_id] = Seen(seq)
        for seen in self._seen.values():
            seen.look()

    def _tell(
        self,
        passes: tuple[Pass, ...],
        *,
        step: int | None = None,
        milliseconds: float = 0.0,
        is_first: bool = False,
    ) -> None:
        told = [seen.tell() for seen in self._seen.values()]
        gone = [seen.seq for seen in self._seen.values() if not seen.seq.is_live]
        for seq in gone:
            del self._seen[seq.request_id]
        pool = self._scheduler.pool
        self._told.append(
            StepTrace(
                step=self._counters.num_steps if step is None else step,
                is_first=is_first,
                milliseconds=milliseconds,
                passes=tuple(_pass_trace(one) for one in passes),
                sequences=tuple(one for one in told if one is not None),
                ended=tuple((seq.request_id, _reason(seq)) for seq in gone),
                num_running=self._scheduler.num_running,
                num_waiting=self._scheduler.num_waiting,
                pages_used=pool.num_held,
                num_pages=pool.num_pages,
                page_size=pool.page_size,
            )
        )


def settle(candidates: tuple[int, ...], at: int, log: TokenLog) -> tuple[int, tuple[int, ...]]:
    """Of the candidates that stood behind position at: how many were committed since, and which were dropped."""
    if log.committed_len == at and log.candidates[: len(candidates)] == candidates:
        return 0, ()
    accepted = 0
    for candidate, committed in zip(candidates, log.ids(at, log.committed_len), strict=False):
        if candidate != committed:
            break
        accepted += 1
    return accepted, candidates[accepted:]


def _pass_trace(one: Pass) -> PassTrace:
    spans = tuple((span.request_id, span.start, span.num_tokens) for span in one.spans)
    return PassTrace(one.kind.value, one.certified, one.num_tokens, one.num_tokens_padded, spans)


def _reason(seq: RequestState) -> str:
    if seq.phase is Phase.FINISHED:
        return seq.finish_reason or "stop"
    return "abort" if seq.phase is Phase.ABORTED else "error"
