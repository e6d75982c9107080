"""The needle: one request again and again among random others; how many different answers does it give?

With the guarantee the answer must be one, to the bit of every logprob, whatever the load, the arrival order, aborts,
preemption, chunk size, a warm or cold prefix cache, lies, and the same in `auto` and in `verify`. Without it, on plain
library kernels, there must be several: a needle that never pricks proves nothing.
"""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from holdfast.bench.determinism.fault_injection import FaultyProposer
from holdfast.bench.determinism.stress_load import Needle, Scale, StressLoad, draw
from holdfast.core.results import Choice, Result, Stats, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.engine import Counters, Engine
from holdfast.scheduler.policy import DeterminismMode

_SEND_AHEAD = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True)
class ChoiceBits:
    """One answer. A deterministic one's logprobs are in its receipt, asked for or not: `recorded` is their digest."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprob_bits: tuple[bytes, ...]
    recorded: str | None
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What must not differ: every answer, all that was thought, and the fp32 bits of every logprob that was asked for."""

    choices: tuple[ChoiceBits, ...]
    prompt_bits: tuple[bytes, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Run:
    """The needle once: its result, and what the engine around it did."""

    result: Result
    counters: Counters


@dataclass
class Tally:
    """The distinct outcomes of many runs, and what happened in them."""

    outcomes: dict[Outcome, int]
    stats: Stats
    num_runs: int = 0
    num_checks: int = 0
    num_revocations: int = 0

    @property
    def num_distinct(self) -> int:
        return len(self.outcomes)

    def add(self, run: Run) -> None:
        outcome = outcome_of(run.result)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.num_runs += 1
        self.num_checks += run.counters.spot_checks
        self.num_revocations += run.counters.revocations
        for one in fields(Stats):
            setattr(self.stats, one.name, getattr(self.stats, one.name) + getattr(run.result.stats, one.name))


def outcome_of(result: Result) -> Outcome:
    recorded = result.receipt["choices"] if result.receipt is not None else [None] * len(result.choices)
    return Outcome(
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


def ask(engine: Engine, needle: Needle) -> Result:
    """The needle alone, on a scheduler of its own."""
    schedule = engine.scheduler.config
    schedule = replace(schedule, speculation=needle.speculation or schedule.speculation)
    return run_in(engine, StressLoad((), 0, 0, schedule, engine.scheduler.pool.num_pages), needle).result


def run_in(engine: Engine, hay: StressLoad, needle: Needle) -> Run:
    """The needle inside one haystack, on a scheduler of its own. Who still runs when it is answered is sent away."""
    engine = engine.restarted(hay.schedule, hay.num_pages)
    limits = engine.limits
    if hay.lies:
        ends = (*sorted(limits.eos_ids), *needle.params.stop_ids)
        engine.runner = FaultyProposer(engine.runner, limits.vocab_size, hay.lies, ends=ends)
    if hay.warm_len:
        ahead = replace(_SEND_AHEAD, deterministic=needle.params.deterministic)
        engine.submit(engine.prepare(needle.prompt[: hay.warm_len], ahead))
        while engine.has_work:
            engine.step()
    others: dict[int, int] = {}
    wanted: int | None = None
    result: Result | None = None
    step = 0
    while result is None or engine.has_work:
        if step == hay.arrives:
            wanted = _submit(engine, needle.prompt, needle.params)
        _let_come_and_go(engine, hay, step, others, over=result is not None)
        for update in engine.step():
            if update.request_id == wanted and update.result is not None:
                result = update.result
        step += 1
    engine.check()
    assert engine.scheduler.pool.num_held == 0, "a page leaked"
    return Run(result, engine.counters)


def _let_come_and_go(engine: Engine, hay: StressLoad, step: int, ids: dict[int, int], *, over: bool) -> None:
    """Neighbours that arrive or are sent away at this step; once it is over, all of them are."""
    off = hay.schedule.determinism == "off"
    for number, one in enumerate(hay.neighbours):
        if one.arrives == step and not over:
            params = replace(one.params, deterministic=False) if off else one.params
            ids[number] = _submit(engine, one.prompt, params)
        if (over or one.aborts == step) and number in ids:
            engine.abort(ids.pop(number))


def _submit(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> int:
    request = engine.prepare(prompt, params)
    engine.submit(request)
    return request.request_id


def prick(
    engine: Engine,
    needle: Needle,
    modes: Sequence[DeterminismMode],
    num_runs: int,
    *,
    seed: int = 0,
    scale: Scale | None = None,
    others: Sequence[SamplingParams] = (),
    each: Callable[[int], None] | None = None,
) -> Tally:
    """Run the needle num_runs times, each in a haystack of its own, taking the modes in turn."""
    tally = Tally({}, Stats())
    for number in range(num_runs):
        rng = random.Random(seed * 1_000_003 + number)
        mode = modes[number % len(modes)]
        tally.add(run_in(engine, draw(rng, engine, needle, mode, scale or Scale(), others), needle))
        if each is not None:
            each(number + 1)
    return tally
