"""The needle: one request again and again among random others; how many different answers does it give?

With the guarantee the answer must be one, to the bit of every logprob, whatever the load, the arrival order, aborts,
preemption, chunk size, a warm or cold prefix cache, and the same in `auto` and in `verify`. Without it, on plain
library kernels, there must be several: a needle that never pricks proves nothing.
"""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.core.params import SamplingParams
from holdfast.core.result import Result, Stats
from holdfast.engine.loop import Engine
from holdfast.schedule.policy import DeterminismMode, SchedulerConfig


@dataclass(frozen=True)
class Outcome:
    """What must not differ: token ids, and the fp32 bits of the chosen and the best logprobs."""

    token_ids: tuple[int, ...]
    logprob_bits: tuple[bytes, ...]


@dataclass(frozen=True)
class Neighbour:
    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int
    aborts: int | None


@dataclass(frozen=True)
class Haystack:
    """One random load and schedule around the needle."""

    neighbours: tuple[Neighbour, ...]
    arrives: int
    warm_len: int  # so much of the prompt is sent ahead, to warm the prefix cache
    schedule: SchedulerConfig
    num_pages: int


@dataclass(frozen=True)
class Scale:
    """How large the random loads may be."""

    max_neighbours: int = 31
    max_prompt: int = 700
    max_tokens: int = 24


@dataclass
class Tally:
    """The distinct outcomes of many runs, and what happened in them."""

    outcomes: dict[Outcome, int]
    stats: Stats
    num_runs: int = 0

    @property
    def num_distinct(self) -> int:
        return len(self.outcomes)


def outcome_of(result: Result) -> Outcome:
    bits = tuple(
        struct.pack("<f", entry.logprob) + b"".join(struct.pack("<if", *pair) for pair in entry.top)
        for entry in result.logprobs or ()
    )
    return Outcome(result.token_ids, bits)


def draw(
    rng: random.Random, engine: Engine, needle_len: int, mode: DeterminismMode, scale: Scale, vocab: int
) -> Haystack:
    """A random load: 0 to many neighbours, and a KV cache that is sometimes too small for them."""
    page_size = engine.scheduler.pool.page_size
    max_pass_rows = rng.choice([32, 48, 64, 128, 512])
    crowded = (
        rng.random() < 0.4
    )  # short prompts, long answers, few pages: running requests push each other out
    if crowded:
        scale = Scale(scale.max_neighbours, 2 * page_size, 3 * scale.max_tokens)
    neighbours = tuple(_neighbour(rng, scale, vocab) for _ in range(rng.randint(0, scale.max_neighbours)))
    longest = max([needle_len, *(len(one.prompt) + one.params.max_tokens for one in neighbours)])
    tight = -(-longest // page_size) + rng.randint(1, 8)
    return Haystack(
        neighbours=neighbours,
        arrives=rng.randint(0, 12),
        warm_len=rng.choice([0, 0, needle_len // 2, needle_len]),
        schedule=SchedulerConfig(
            max_num_seqs=rng.randint(2, 32),
            max_pass_rows=max_pass_rows,
            reference_rows=engine.scheduler.config.reference_rows,
            determinism=mode,
            certified_sizes=engine.certificate.sizes if engine.certificate is not None else (),
            prefix_cache=rng.random() < 0.8,
        ),
        num_pages=min(
            engine.scheduler.pool.num_pages, tight if crowded else rng.choice([tight, tight * 2, 10**9])
        ),
    )


def _neighbour(rng: random.Random, scale: Scale, vocab: int) -> Neighbour:
    length = min(scale.max_prompt, int(rng.choice([1, 4, 40, scale.max_prompt]) * rng.random()) + 1)
    params = SamplingParams(
        max_tokens=rng.randint(1, scale.max_tokens),
        temperature=rng.choice([0.0, 0.7]),
        seed=rng.randrange(1 << 32),
        ignore_eos=True,
        deterministic=rng.random() < 0.25,
    )
    aborts = rng.randint(0, 30) if rng.random() < 0.2 else None
    return Neighbour(
        tuple(rng.randrange(2, vocab) for _ in range(length)), params, rng.randint(0, 20), aborts
    )


def run_in(engine: Engine, hay: Haystack, prompt: Sequence[int], params: SamplingParams) -> Result:
    """The needle inside one haystack, on a scheduler of its own."""
    engine = engine.restarted(hay.schedule, hay.num_pages)
    off = hay.schedule.determinism == "off"
    if hay.warm_len:
        _drain(engine, list(prompt)[: hay.warm_len], replace(params, max_tokens=1))
    ids: dict[int, int] = {}
    needle: int | None = None
    result: Result | None = None
    step = 0
    while result is None or engine.has_work:
        if step == hay.arrives:
            request = engine.prepare(list(prompt), params)
            engine.submit(request)
            needle = request.request_id
        for number, one in enumerate(hay.neighbours):
            if one.arrives == step:
                allowed = replace(one.params, deterministic=False) if off else one.params
                request = engine.prepare(one.prompt, allowed)
                engine.submit(request)
                ids[number] = request.request_id
            if one.aborts == step and number in ids:
                engine.abort(ids[number])
        for update in engine.step():
            if update.request_id == needle and update.result is not None:
                result = update.result
        step += 1
    engine.check()
    assert engine.scheduler.pool.num_held == 0, "a page leaked"
    return result


def _drain(engine: Engine, prompt: list[int], params: SamplingParams) -> None:
    engine.submit(engine.prepare(prompt, params))
    while engine.has_work:
        engine.step()


def prick(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    modes: Sequence[DeterminismMode],
    num_runs: int,
    *,
    seed: int = 0,
    scale: Scale | None = None,
    each: Callable[[int], None] | None = None,
) -> Tally:
    """Run the needle num_runs times, each in a haystack of its own, taking the modes in turn."""
    tally = Tally({}, Stats())
    scale = scale or Scale()
    vocab = min(engine.limits.vocab_size, 400)
    for number in range(num_runs):
        rng = random.Random(seed * 1_000_003 + number)
        mode = modes[number % len(modes)]
        hay = draw(rng, engine, len(prompt) + params.max_tokens, mode, scale, vocab)
        result = run_in(engine, hay, prompt, params)
        outcome = outcome_of(result)
        tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
        tally.num_runs += 1
        for name in (
            "candidates",
            "accepted",
            "rolled_back",
            "rollbacks",
            "windows",
            "preemptions",
            "cached_tokens",
        ):
            setattr(tally.stats, name, getattr(tally.stats, name) + getattr(result.stats, name))
        if each is not None:
            each(number + 1)
    return tally
