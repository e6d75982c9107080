"""A haystack: one random load and schedule around the needle, all of it drawn from one random source.

What varies: the neighbours (what they ask, when they come, whether they are sent away, whether they share the needle's
prompt), whether the needle's prompt is known already, rows, sequences, pages, look-up, spot checks, how many thoughts are
taken for granted, and how many of the proposals are lies. None of it may show in a deterministic answer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import DeterminismMode, SchedulerConfig, Speculation

_PASS_ROWS = (32, 48, 64, 128, 512)
_REFERENCE_PASSES = (2, 2, 2, 3, 4)  # a pass holds two of them at least


@dataclass(frozen=True)
class Needle:
    """The request that is asked again and again. Without its own say the haystack decides about look-up."""

    prompt: tuple[int, ...]
    params: SamplingParams
    speculation: Speculation | None = None

    @property
    def max_len(self) -> int:
        return len(self.prompt) + self.params.max_tokens


@dataclass(frozen=True)
class Neighbour:
    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int
    aborts: int | None = None

    @property
    def max_len(self) -> int:
        return len(self.prompt) + self.params.max_tokens


@dataclass(frozen=True)
class StressLoad:
    """`warm_len` tokens of the prompt are sent ahead, to warm the prefix cache; `lies` is the share of wrong proposals."""

    neighbours: tuple[Neighbour, ...]
    arrives: int
    warm_len: int
    schedule: SchedulerConfig
    num_pages: int
    lies: float = 0.0


@dataclass(frozen=True)
class Scale:
    """How large the random loads may be, and how often proposals may be lies."""

    max_neighbours: int = 31
    max_prompt: int = 700
    max_tokens: int = 24
    lies: tuple[float, ...] = (0.0, 0.1, 0.5)


def draw(
    rng: random.Random,
    engine: Engine,
    needle: Needle,
    mode: DeterminismMode,
    scale: Scale,
    others: Sequence[SamplingParams] = (),
) -> StressLoad:
    """A random load: none to many neighbours, and a KV cache that is sometimes too small for them.

    others are settings some of the neighbours ask for.
    """
    pool = engine.scheduler.pool
    crowded = (
        rng.random() < 0.4
    )  # short prompts, long answers, few pages: running requests push each other out
    if crowded:
        scale = replace(scale, max_prompt=2 * pool.page_size, max_tokens=3 * scale.max_tokens)
    vocab = min(engine.tokenizer.vocab_size, engine.limits.vocab_size, 400)
    neighbours = tuple(
        _neighbour(rng, scale, vocab, needle, others) for _ in range(rng.randint(0, scale.max_neighbours))
    )
    longest = max([needle.max_len, *(one.max_len for one in neighbours)])
    tight = pool.pages_for(longest) + rng.randint(0, 6)
    return StressLoad(
        neighbours=neighbours,
        arrives=rng.randint(6 if crowded else 0, 12),  # the youngest gives way first
        warm_len=rng.choice([0, 0, len(needle.prompt) // 2, len(needle.prompt)]),
        schedule=_schedule(rng, engine, needle, mode),
        num_pages=min(pool.num_pages, tight if crowded else rng.choice([tight, tight * 2, pool.num_pages])),
        lies=rng.choice(scale.lies),
    )


def _schedule(rng: random.Random, engine: Engine, needle: Needle, mode: DeterminismMode) -> SchedulerConfig:
    speculation: Speculation = rng.choice(["off", "ngram"])
    usual = engine.scheduler.config
    return replace(
        usual,
        max_num_seqs=min(rng.randint(2, 32), usual.max_num_seqs),
        max_pass_tokens=max(rng.choice(_PASS_ROWS), rng.choice(_REFERENCE_PASSES) * usual.reference_tokens),
        determinism=mode,
        certified_sizes=_certified_sizes(rng, engine),
        prefix_cache=rng.random() < 0.8,
        speculation=needle.speculation or speculation,
        spot_check_rate=rng.choice([0.0, 0.05, 1.0]),
        max_guesses=rng.choice([0, 2, usual.max_guesses]) if usual.chunk_len else usual.max_guesses,
    )


def _certified_sizes(rng: random.Random, engine: Engine) -> tuple[int, ...]:
    """All that are certified; where passes are padded to fewer, mostly those."""
    everything = engine.certificate.sizes if engine.certificate is not None else ()
    usual = engine.scheduler.config.certified_sizes
    return usual if usual and usual != everything and rng.random() < 0.75 else everything


def _neighbour(
    rng: random.Random, scale: Scale, vocab: int, needle: Needle, others: Sequence[SamplingParams]
) -> Neighbour:
    max_tokens = rng.randint(1, scale.max_tokens)
    params = SamplingParams(max_tokens=max_tokens, temperature=rng.choice([0.0, 0.7]), ignore_eos=True)
    if others and rng.random() < 0.6:
        params = rng.choice(others)
        params = replace(params, max_tokens=max(max_tokens, params.min_tokens))
    params = replace(params, seed=rng.randrange(1 << 32), deterministic=rng.random() < 0.25)
    aborts = rng.randint(0, 30) if rng.random() < 0.2 else None
    return Neighbour(_prompt(rng, scale, vocab, needle.prompt), params, rng.randint(0, 20), aborts)


def _prompt(rng: random.Random, scale: Scale, vocab: int, known: tuple[int, ...]) -> tuple[int, ...]:
    """Random tokens; behind a part of the needle's prompt, or a few of them over and over, now and then."""
    length = min(scale.max_prompt, int(rng.choice([1, 4, 40, scale.max_prompt]) * rng.random()) + 1)
    kind = rng.random()
    if kind < 0.2:
        known = known[: rng.randint(1, len(known))]
        return known + tuple(rng.randrange(2, vocab) for _ in range(rng.randint(0, 4)))
    period = rng.randint(1, 5) if kind < 0.4 else length
    pattern = [rng.randrange(2, vocab) for _ in range(period)]
    return tuple(pattern[at % period] for at in range(length))
