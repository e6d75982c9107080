"""A stress load: random background requests and a random schedule around the probe request, drawn
from one seed.

What varies:
    background requests   their settings and prompts, arrival, aborts, a prompt prefix shared with the probe
    prefix cache          on or off; the probe's prompt cached, half cached or not cached
    limits                tokens per pass, concurrent requests, KV pages, recurrent states
    speculation           n-gram proposals on or off, guesses of a model that thinks, the share of faulty candidates
    spot checks           never, sometimes, always
None of it may change a deterministic answer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import DeterminismMode, SchedulerConfig, Speculation

_PASS_TOKENS = (32, 48, 64, 128, 512)
_REFERENCE_PASSES = (2, 2, 2, 3, 4)  # a pass holds at least two reference passes


@dataclass(frozen=True)
class ProbeRequest:
    """The request that is repeated. Without `speculation` the load decides about n-gram proposals."""

    prompt: tuple[int, ...]
    params: SamplingParams
    speculation: Speculation | None = None

    @property
    def max_len(self) -> int:
        return len(self.prompt) + self.params.max_tokens


@dataclass(frozen=True)
class BackgroundRequest:
    """A request beside the probe. It arrives, and may be aborted, at a step of the engine."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrival_step: int
    abort_step: int | None = None

    @property
    def max_len(self) -> int:
        return len(self.prompt) + self.params.max_tokens


@dataclass(frozen=True)
class StressLoad:
    """One load. The first warmup_len tokens of the probe's prompt are requested before it arrives."""

    background: tuple[BackgroundRequest, ...]
    arrival_step: int
    warmup_len: int
    schedule: SchedulerConfig
    num_pages: int
    fault_rate: float = 0.0
    fault_seed: int = 0


@dataclass(frozen=True)
class LoadScale:
    """Upper limits of random loads, and the fault rates to draw from."""

    max_background: int = 31
    max_prompt_len: int = 700
    max_tokens: int = 24
    fault_rates: tuple[float, ...] = (0.0, 0.1, 0.5)


def draw_load(
    rng: random.Random,
    engine: Engine,
    probe: ProbeRequest,
    mode: DeterminismMode,
    scale: LoadScale,
    others: Sequence[SamplingParams] = (),
) -> StressLoad:
    """Draw a load of 0 to scale.max_background requests. Its KV cache may be too small for all of them."""
    pool = engine.scheduler.pool
    crowded = rng.random() < 0.4  # short prompts, long answers, few pages: running requests are preempted
    if crowded:
        scale = replace(scale, max_prompt_len=2 * pool.page_size, max_tokens=3 * scale.max_tokens)
    vocab = min(engine.tokenizer.vocab_size, engine.limits.vocab_size, 400)
    background = tuple(
        _background_request(rng, scale, vocab, probe, others)
        for _ in range(rng.randint(0, scale.max_background))
    )
    longest = max([probe.max_len, *(one.max_len for one in background)])
    tight = pool.pages_for(longest) + rng.randint(0, 6)
    return StressLoad(
        background=background,
        arrival_step=rng.randint(6 if crowded else 0, 12),  # the youngest request is preempted first
        warmup_len=rng.choice([0, 0, len(probe.prompt) // 2, len(probe.prompt)]),
        schedule=_schedule(rng, engine, probe, mode),
        num_pages=min(pool.num_pages, tight if crowded else rng.choice([tight, tight * 2, pool.num_pages])),
        fault_rate=rng.choice(scale.fault_rates),
    )


def _schedule(
    rng: random.Random, engine: Engine, probe: ProbeRequest, mode: DeterminismMode
) -> SchedulerConfig:
    speculation: Speculation = rng.choice(["off", "ngram"])
    usual, page_size = engine.scheduler.config, engine.scheduler.pool.page_size
    extension = usual.new_extension
    drawn = replace(
        usual,
        max_num_seqs=min(rng.randint(2, 32), usual.max_num_seqs),
        max_pass_tokens=max(rng.choice(_PASS_TOKENS), rng.choice(_REFERENCE_PASSES) * usual.reference_tokens),
        determinism=mode,
        certified_sizes=_certified_sizes(rng, engine),
        prefix_cache=rng.random() < 0.8,
        speculation=probe.speculation or speculation,
        spot_check_rate=rng.choice([0.0, 0.05, 1.0]),
        new_extension=extension and extension.guessing(rng.choice([0, 2, None])),
    )
    if not usual.num_states:
        return drawn
    interval = rng.choice([1, 2, 4, usual.state_interval // page_size]) * page_size
    return replace(drawn, num_states=drawn.max_num_seqs + rng.choice([0, 1, 3, 20]), state_interval=interval)


def _certified_sizes(rng: random.Random, engine: Engine) -> tuple[int, ...]:
    """Return all certified sizes. Where the engine pads passes to a subset of them, mostly that subset."""
    everything = engine.certificate.sizes if engine.certificate is not None else ()
    usual = engine.scheduler.config.certified_sizes
    return usual if usual and usual != everything and rng.random() < 0.75 else everything


def _background_request(
    rng: random.Random, scale: LoadScale, vocab: int, probe: ProbeRequest, others: Sequence[SamplingParams]
) -> BackgroundRequest:
    max_tokens = rng.randint(1, scale.max_tokens)
    params = SamplingParams(max_tokens=max_tokens, temperature=rng.choice([0.0, 0.7]), ignore_eos=True)
    if others and rng.random() < 0.6:
        params = rng.choice(others)
        params = replace(params, max_tokens=max(max_tokens, params.min_tokens))
    params = replace(params, seed=rng.randrange(1 << 32), deterministic=rng.random() < 0.25)
    abort_step = rng.randint(0, 30) if rng.random() < 0.2 else None
    return BackgroundRequest(_prompt(rng, scale, vocab, probe.prompt), params, rng.randint(0, 20), abort_step)


def _prompt(rng: random.Random, scale: LoadScale, vocab: int, known: tuple[int, ...]) -> tuple[int, ...]:
    """Draw random tokens, sometimes after a prefix of the probe's prompt, sometimes a short pattern."""
    length = min(scale.max_prompt_len, int(rng.choice([1, 4, 40, scale.max_prompt_len]) * rng.random()) + 1)
    kind = rng.random()
    if kind < 0.2:
        known = known[: rng.randint(1, len(known))]
        return known + tuple(rng.randrange(2, vocab) for _ in range(rng.randint(0, 4)))
    period = rng.randint(1, 5) if kind < 0.4 else length
    pattern = [rng.randrange(2, vocab) for _ in range(period)]
    return tuple(pattern[at % period] for at in range(length))
