"""Step traces: all committed and all rolled-back tokens are in them, and tracing changes no answer."""

import logging
from collections import defaultdict
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from ngram_faults import inject_ngram_faults

from holdfast.bench.faults import FaultyProposer
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import StepPlan
from holdfast.engine import tracer as tracer_module
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.engine.tracer import StepTrace, Tracer
from support.deferred_engine import deferred_engine
from support.tiny import tiny_engine

DETERMINISTIC = SamplingParams(max_tokens=40, temperature=0.9, seed=3, deterministic=True, ignore_eos=True)
ORDINARY = replace(DETERMINISTIC, deterministic=False)
PROMPT = tuple(range(40, 75))
CONFIG = EngineConfig(
    dtype="fp32",
    determinism="verify",
    max_num_seqs=8,
    max_pass_tokens=64,
    kv_memory="4MiB",
    speculation="off",
)


class TraceFollower:
    """Follows the traces, as an inspector page does."""

    def __init__(self) -> None:
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.candidates: dict[int, tuple[int, ...]] = {}
        self.rolled_back: dict[int, list[int]] = defaultdict(list)
        self.accepted: dict[int, int] = defaultdict(int)
        self.ended: dict[int, str] = {}
        self.traces: list[StepTrace] = []

    def take(self, engine: Engine) -> None:
        for trace in engine.tracer.take() if engine.tracer is not None else ():
            self.traces.append(trace)
            for one in trace.requests:
                known = self.tokens.get(one.request_id, ())
                assert one.committed_start <= len(known), "nothing is left out"
                before = self.candidates.get(one.request_id, ())
                self.tokens[one.request_id] = known[: one.committed_start] + one.committed_ids
                assert len(self.tokens[one.request_id]) == one.committed_len
                if before and one.rolled_back_ids and one.rolled_back_start >= len(known):
                    dropped = before[one.rolled_back_start - len(known) :]
                    assert one.rolled_back_ids[: len(dropped)] == dropped, "what was a candidate was dropped"
                self.candidates[one.request_id] = one.candidate_ids
                self.rolled_back[one.request_id] += one.rolled_back_ids
                self.accepted[one.request_id] += one.num_accepted
            self.ended.update(trace.ended)


def run(
    engine: Engine,
    *requests: tuple[tuple[int, ...], SamplingParams],
    follower: TraceFollower | None = None,
    attach_at: int = 0,
) -> dict[int, Result]:
    for prompt, params in requests:
        engine.submit(engine.prepare(prompt, params))
    results: dict[int, Result] = {}
    step = 0
    while engine.has_requests:
        if follower is not None and step == attach_at:
            engine.tracer = Tracer(engine)
        for update in engine.step():
            if update.result is not None:
                results[update.request_id] = update.result
        if follower is not None:
            follower.take(engine)
        step += 1
    return results


def with_wrong_candidates(engine: Engine, chance: float = 0.4) -> Engine:
    engine.runner = FaultyProposer(engine.runner, engine.limits.vocab_size, chance, seed=5)
    return engine


def engine_in(mode: str, **changes: Any) -> Engine:
    return tiny_engine(replace(CONFIG, determinism=mode, **changes))


def check_traces(follower: TraceFollower, results: dict[int, Result]) -> None:
    """For each answer: the traced tokens are the committed ones, and every rejected candidate was traced."""
    for request_id, result in results.items():
        branches = range(request_id, request_id + len(result.choices))
        for branch, choice in zip(branches, result.choices, strict=True):
            assert follower.tokens[branch] == result.prompt_token_ids + choice.token_ids
            assert follower.ended[branch] == choice.finish_reason
        assert sum(len(follower.rolled_back[one]) for one in branches) == result.stats.rolled_back


@pytest.mark.parametrize("mode", ["auto", "verify", "off"])
def test_traced_tokens_are_the_committed_ones(mode: str) -> None:
    engine, follower = engine_in(mode), TraceFollower()
    wanted = ORDINARY if mode == "off" else DETERMINISTIC
    results = run(engine, (PROMPT, wanted), (PROMPT[:9], ORDINARY), follower=follower)
    check_traces(follower, results)
    check_passes(follower, engine)
    for trace in follower.traces:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(trace), type=StepTrace) == trace


def check_passes(follower: TraceFollower, engine: Engine) -> None:
    """Passes are traced as they were planned."""
    passes = [one for trace in follower.traces for one in trace.passes]
    kinds, counters = [one.kind for one in passes], engine.counters
    assert kinds.count("fast") == counters.num_fast_passes
    assert kinds.count("canonical") == counters.num_canonical_passes
    assert sum(one.certified for one in passes) == counters.num_certified_passes
    assert sum(one.num_tokens_padded for one in passes) == counters.num_padded_tokens > 0
    assert all(one.num_tokens == sum(rows for _, _, rows in one.spans) for one in passes)
    steps = [trace for trace in follower.traces if trace.passes]
    assert [trace.step for trace in steps] == list(range(1, counters.num_steps + 1))
    assert all(trace.milliseconds > 0 for trace in steps)


@pytest.mark.parametrize("mode", ["auto", "verify", "off"])
def test_ngram_candidates_are_traced(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are proposed and judged within one step, so only the verdict is traced."""
    requests = ((PROMPT, ORDINARY if mode == "off" else DETERMINISTIC), (PROMPT[:9], ORDINARY))
    truths = tuple(run(engine_in(mode), *requests).values())
    engine, follower = engine_in(mode, speculation="ngram"), TraceFollower()
    inject_ngram_faults(monkeypatch, engine.limits.vocab_size, 0.2, truths=truths)
    results = run(engine, *requests, follower=follower)
    check_traces(follower, results)
    assert any(follower.accepted.values())
    for result in results.values():
        assert result.stats.looked_up > 0 and result.stats.rolled_back > 0


def test_rolled_back_ids_are_exactly_the_rejected_candidates() -> None:
    engine, follower = with_wrong_candidates(engine_in("verify")), TraceFollower()
    several = replace(DETERMINISTIC, n=3)
    results = run(
        engine, (PROMPT, DETERMINISTIC), (PROMPT[5:], several), (PROMPT, ORDINARY), follower=follower
    )
    check_traces(follower, results)
    first_ids = {one.request_id: one.first_id for trace in follower.traces for one in trace.requests}
    assert set(first_ids.values()) == set(results) and len(first_ids) == 5  # each choice has its own trace
    deterministic = [one for one in results.values() if one.determinism != "none"]
    assert all(one.stats.rolled_back > 0 and one.stats.accepted > 0 for one in deterministic)
    for request_id, result in results.items():
        if result.determinism != "none":
            branches = range(request_id, request_id + len(result.choices))
            assert sum(follower.accepted[one] for one in branches) == result.stats.accepted
        else:
            assert not follower.rolled_back[request_id]


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_tracing_changes_no_answer(mode: str) -> None:
    requests = ((PROMPT, replace(DETERMINISTIC, logprobs=2)), (PROMPT[4:], ORDINARY))
    alone = run(with_wrong_candidates(engine_in(mode)), *requests)
    traced = run(with_wrong_candidates(engine_in(mode)), *requests, follower=TraceFollower())
    assert [(one.token_ids, one.logprobs, one.stats) for one in traced.values()] == [
        (one.token_ids, one.logprobs, one.stats) for one in alone.values()
    ]


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_traces_of_plans_in_flight_add_up(auto_llm: LLM, mode: str) -> None:
    engine, follower = deferred_engine(auto_llm, mode), TraceFollower()
    results = run(engine, ((1, 2, 3), DETERMINISTIC), follower=follower)
    check_traces(follower, results)
    (request_id,) = results
    assert follower.accepted[request_id] == results[request_id].stats.accepted
    assert bool(follower.rolled_back[request_id]) == (mode == "verify")
    steps = [trace.step for trace in follower.traces if trace.passes]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("attach_at", [1, 5, 11])
def test_first_trace_has_all_live_requests(attach_at: int) -> None:
    engine, follower = with_wrong_candidates(engine_in("verify")), TraceFollower()
    results = run(engine, (PROMPT, DETERMINISTIC), (PROMPT, ORDINARY), follower=follower, attach_at=attach_at)
    first = follower.traces[0]
    assert first.is_first and not any(one.is_first for one in follower.traces[1:])
    assert [one.committed_start for one in first.requests] == [0, 0]
    assert first.requests[0].committed_ids[: len(PROMPT)] == PROMPT
    for request_id, result in results.items():
        assert follower.tokens[request_id] == result.prompt_token_ids + result.token_ids


def test_traced_pages_and_lengths_are_the_engine_s() -> None:
    engine = engine_in("verify")
    engine.tracer = Tracer(engine)
    engine.submit(engine.prepare(PROMPT, DETERMINISTIC))
    pool = engine.scheduler.pool
    for _ in range(12):
        engine.step()
        trace = engine.tracer.take()[-1]
        (seq,) = engine.scheduler.requests
        (traced,) = trace.requests
        assert (trace.num_pages_used, trace.num_pages, trace.page_size) == (
            pool.num_held,
            pool.num_pages,
            pool.page_size,
        )
        assert traced.num_pages == len(seq.page_table) == pool.pages_for(seq.tokens.total_len)
        assert (traced.phase, traced.prompt_len) == (seq.phase.value, len(PROMPT))
        assert (traced.committed_len, traced.canonical_len, traced.computed_len) == (
            seq.tokens.committed_len,
            seq.canonical_len,
            seq.computed_len,
        )


def test_waiting_requests_are_traced_once() -> None:
    engine = engine_in("verify", max_num_seqs=1)
    engine.tracer = Tracer(engine)
    for _ in range(3):
        engine.submit(engine.prepare(PROMPT, DETERMINISTIC))
    engine.step()
    trace = engine.tracer.take()[-1]
    assert [one.phase for one in trace.requests] == ["decode", "queued", "queued"]
    assert (trace.num_running, trace.num_waiting) == (1, 2)
    engine.step()
    assert len(engine.tracer.take()[-1].requests) == 1


def test_aborted_request_is_traced_at_once() -> None:
    engine, follower = engine_in("verify"), TraceFollower()
    engine.tracer = Tracer(engine)
    request = engine.prepare(PROMPT, DETERMINISTIC)
    engine.submit(request)
    while not engine.scheduler.requests[0].tokens.num_candidates:
        engine.step()
    (update,) = engine.abort(request.request_id)
    follower.take(engine)
    assert update.result is not None
    assert follower.ended == {request.request_id: "abort"}
    assert len(follower.rolled_back[request.request_id]) == update.result.stats.rolled_back > 0
    assert follower.traces[-1].num_pages_used == 0
    assert not engine.abort(request.request_id)
    assert engine.tracer.take() == []


def test_preempted_candidates_are_rolled_back() -> None:
    engine, follower = engine_in("verify", prefix_cache=False), TraceFollower()
    engine = engine.restarted(engine.scheduler.config, num_pages=12)
    long = replace(DETERMINISTIC, max_tokens=100)
    results = run(engine, *[(PROMPT[one:], long) for one in range(4)], follower=follower)
    assert sum(result.stats.preemptions for result in results.values()) > 0
    check_traces(follower, results)


def test_requests_of_a_failed_pass_are_traced_as_errors() -> None:
    engine, follower = engine_in("verify"), TraceFollower()
    runner = engine.runner

    class Breaking:
        def run(self, plan: StepPlan) -> Any:
            if engine.counters.num_steps == 4:
                raise RuntimeError("broken")
            return runner.run(plan)

    engine.runner = Breaking()
    results = run(engine, (PROMPT, DETERMINISTIC), follower=follower)
    (request_id,) = results
    assert follower.ended == {request_id: "error"}
    assert follower.traces[-1].step == 4


def test_failing_tracer_is_detached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_in("verify")

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    alone = run(engine_in("verify"), (PROMPT, DETERMINISTIC))
    engine.tracer = Tracer(engine)
    monkeypatch.setattr(tracer_module, "compare_candidates", fail)
    with caplog.at_level(logging.ERROR):
        results = run(engine, (PROMPT, DETERMINISTIC))
    assert engine.tracer is None
    assert "could not be traced" in caplog.text
    assert [one.token_ids for one in results.values()] == [one.token_ids for one in alone.values()]


def test_restarted_request_is_traced_again() -> None:
    """After a revocation deterministic requests restart from their prompts."""
    engine, follower = engine_in("auto"), TraceFollower()
    engine.tracer = Tracer(engine)
    engine.submit(engine.prepare(PROMPT, DETERMINISTIC))
    for _ in range(6):
        engine.step()
    follower.take(engine)
    (seq,) = engine.scheduler.requests
    assert seq.tokens.num_output > 0
    engine.scheduler._revoke()
    while engine.has_requests:
        engine.step()
        follower.take(engine)
    (request_id,) = follower.tokens
    first = next(trace.requests[0] for trace in follower.traces if trace.step == 7)
    assert first.committed_start == len(PROMPT)
    assert len(follower.tokens[request_id]) == len(PROMPT) + DETERMINISTIC.max_tokens


def test_long_request_is_traced_by_its_last_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer_module, "MAX_TRACED_TOKENS", 8)
    engine = engine_in("verify")
    engine.submit(engine.prepare(PROMPT, DETERMINISTIC))
    engine.tracer = Tracer(engine)
    (traced,) = engine.tracer.take()[0].requests
    assert (traced.committed_start, traced.committed_ids) == (len(PROMPT) - 8, PROMPT[-8:])
