"""The determinism stress test: repeat one request inside random loads and count its distinct
results.

A deterministic request must give one result, to the bit of every logprob, for any load, arrival
order, aborts, preemption, chunk size, warm or cold prefix cache and injected faults, and the same
one in `auto` and in `verify`. An ordinary request on library kernels must give several: otherwise
the loads could not show a difference.
"""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from holdfast.bench.faults import FaultyProposer
from holdfast.bench.load import LoadScale, ProbeRequest, StressLoad, draw_load
from holdfast.core.results import Choice, Result, Stats, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.engine import Engine
from holdfast.engine.status import EngineCounters
from holdfast.scheduler.policy import DeterminismMode

_WARMUP = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True)
class ChoiceBits:
    """One answer, to the bit. recorded: the digest of the logprobs in its receipt."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprob_bits: tuple[bytes, ...]
    recorded: str | None
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True)
class ResultBits:
    """What must not differ between runs: every answer, its thoughts, the bits of every requested logprob."""

    choices: tuple[ChoiceBits, ...]
    prompt_bits: tuple[bytes, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class StressRun:
    result: Result
    counters: EngineCounters


@dataclass
class StressSummary:
    """The distinct results of many runs, each with its number of runs, and what happened in them."""

    results: dict[ResultBits, int] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    num_runs: int = 0
    num_checks: int = 0
    num_revocations: int = 0

    @property
    def num_distinct(self) -> int:
        return len(self.results)

    def add(self, run: StressRun) -> None:
        bits = result_bits(run.result)
        self.results[bits] = self.results.get(bits, 0) + 1
        self.num_runs += 1
        self.num_checks += run.counters.num_spot_checks
        self.num_revocations += run.counters.num_revocations
        for one in fields(Stats):
            added = getattr(self.stats, one.name) + getattr(run.result.stats, one.name)
            setattr(self.stats, one.name, added)


def result_bits(result: Result) -> ResultBits:
    recorded = result.receipt["choices"] if result.receipt is not None else [None] * len(result.choices)
    return ResultBits(
        tuple(_choice_bits(choice, kept) for choice, kept in zip(result.choices, recorded, strict=True)),
        _bits([one for one in result.prompt_logprobs or () if one is not None]),
        result.error,
    )


def _choice_bits(choice: Choice, kept: dict[str, dict[str, str] | None] | None) -> ChoiceBits:
    logprobs = kept["logprobs"] if kept is not None else None
    return ChoiceBits(
        choice.token_ids,
        choice.text,
        choice.finish_reason,
        _bits(choice.logprobs or ()),
        logprobs["digest"] if logprobs is not None else None,
        choice.thoughts,
    )


def _bits(logprobs: Sequence[TokenLogprob]) -> tuple[bytes, ...]:
    return tuple(
        struct.pack("<f", entry.logprob) + b"".join(struct.pack("<if", *pair) for pair in entry.top)
        for entry in logprobs
    )


def run_alone(engine: Engine, probe: ProbeRequest) -> Result:
    """Run the probe without background requests, on a fresh scheduler."""
    schedule = engine.scheduler.config
    schedule = replace(schedule, speculation=probe.speculation or schedule.speculation)
    return run_in_load(engine, StressLoad((), 0, 0, schedule, engine.scheduler.pool.num_pages), probe).result


def run_in_load(engine: Engine, load: StressLoad, probe: ProbeRequest) -> StressRun:
    """Run the probe inside one load, on a fresh scheduler. Then abort the background requests."""
    engine = engine.restarted(load.schedule, load.num_pages)
    limits = engine.limits
    if load.fault_rate:
        ends = (*sorted(limits.eos_ids), *probe.params.stop_ids)
        engine.runner = FaultyProposer(
            engine.runner, limits.vocab_size, load.fault_rate, seed=load.fault_seed, ends=ends
        )
    if load.warmup_len:
        warmup = replace(_WARMUP, deterministic=probe.params.deterministic)
        engine.submit(engine.prepare(probe.prompt[: load.warmup_len], warmup))
        while engine.has_work:
            engine.step()
    background_ids: dict[int, int] = {}
    probe_id: int | None = None
    result: Result | None = None
    step = 0
    while result is None or engine.has_work:
        if step == load.arrival_step:
            probe_id = submit(engine, probe.prompt, probe.params)
        _update_background(engine, load, step, background_ids, over=result is not None)
        for update in engine.step():
            if update.request_id == probe_id and update.result is not None:
                result = update.result
        step += 1
    engine.check()
    assert engine.scheduler.pool.num_held == 0, "a page leaked"
    return StressRun(result, engine.counters)


def _update_background(
    engine: Engine, load: StressLoad, step: int, ids: dict[int, int], *, over: bool
) -> None:
    """Submit and abort the background requests of this step. Abort all once the probe is answered."""
    off = load.schedule.determinism == "off"
    for number, one in enumerate(load.background):
        if one.arrival_step == step and not over:
            params = replace(one.params, deterministic=False) if off else one.params
            ids[number] = submit(engine, one.prompt, params)
        if (over or one.abort_step == step) and number in ids:
            engine.abort(ids.pop(number))


def submit(
    engine: Engine, prompt: str | Sequence[int], params: SamplingParams, *, want_receipt: bool = True
) -> int:
    request = engine.prepare(prompt, params, want_receipt=want_receipt)
    engine.submit(request)
    return request.request_id


def stress_test(
    engine: Engine,
    probe: ProbeRequest,
    modes: Sequence[DeterminismMode],
    num_runs: int,
    *,
    seed: int = 0,
    scale: LoadScale | None = None,
    others: Sequence[SamplingParams] = (),
    verifier: Engine | None = None,
) -> StressSummary:
    """Run the probe in random loads, with the modes in turn. verifier: another engine for `verify`."""
    summary = StressSummary()
    for number in range(num_runs):
        rng = random.Random(seed * 1_000_003 + number)
        mode = modes[number % len(modes)]
        used = verifier if verifier is not None and mode == "verify" else engine
        load = draw_load(rng, used, probe, mode, scale or LoadScale(), others)
        summary.add(run_in_load(used, load, probe))
    return summary
