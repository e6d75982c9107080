"""What the needle tests share; run as a program, it pricks in a process of its own and prints the digests of what it saw."""

import hashlib
import random
import sys
from dataclasses import replace
from functools import cache

from holdfast.bench.determinism.features import Feature, combine, find_features
from holdfast.bench.determinism.stress import Outcome, Tally, prick
from holdfast.bench.determinism.stress_load import Needle, Scale
from holdfast.bench.determinism.survey import PROMPT as TEXT
from holdfast.bench.tiny import tiny_engine
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode

BOTH: tuple[DeterminismMode, ...] = ("auto", "verify")
SMALL = Scale(max_neighbours=6, max_prompt=40, max_tokens=8)
LARGE = Scale(max_neighbours=24, max_prompt=300)
FEATURES = (
    "greedy", "temperature", "top-k", "top-p", "min-p", "n",
    "presence penalty", "frequency penalty", "repetition penalty", "logit bias",
    "stop text", "stop token", "min tokens", "ignore eos",
    "allowed tokens", "bad tokens", "bad words",
    "logprobs", "prompt logprobs", "scores only", "echo",
    "JSON schema", "JSON object", "regex", "choice", "grammar",
    "copied text",
)  # fmt: skip

_rng = random.Random(1)
PROMPT = tuple(_rng.randrange(2, 400) for _ in range(37))


def plain(temperature: float, *, deterministic: bool = True) -> Needle:
    """Nothing special: 24 tokens and their logprobs."""
    params = SamplingParams(
        max_tokens=24,
        temperature=temperature,
        top_p=0.95 if temperature else 1.0,
        seed=5,
        ignore_eos=True,
        logprobs=3,
        deterministic=deterministic,
    )
    return Needle(PROMPT, params)


@cache
def engine(kernels: KernelBackend, dtype: str) -> Engine:
    """A tiny model in which, in fp32, every token has a near twin. It is only ever restarted, never run."""
    config = EngineConfig(kernels=kernels, dtype=dtype, max_num_seqs=32, kv_memory="64MiB")
    return tiny_engine(config, twins=dtype == "fp32")


@cache
def features(kernels: KernelBackend, dtype: str) -> dict[str, Feature]:
    one = engine(kernels, dtype)
    return {feature.name: feature for feature in find_features(one, one.tokenizer.encode(TEXT))}


def combinations(known: dict[str, Feature], count: int, seed: int = 0) -> list[Feature]:
    rng = random.Random(seed)
    return [combine(rng, tuple(known.values())) for _ in range(count)]


def settings(known: dict[str, Feature]) -> list[SamplingParams]:
    """What neighbours may ask for."""
    return [feature.needle().params for feature in (*known.values(), *combinations(known, 12, seed=1))]


def outcome(tally: Tally) -> Outcome:
    """The one answer all runs gave."""
    assert tally.num_distinct == 1, f"{tally.num_distinct} different answers: {list(tally.outcomes)}"
    assert tally.num_revocations == 0
    return next(iter(tally.outcomes))


def digests(kernels: KernelBackend, **limits: object) -> list[str]:
    """One line a needle: its dtype, how many outcomes it had, and a digest of the first. limits change the engine's own."""
    lines = []
    for dtype in ("fp32", "bf16"):
        if limits:
            config = EngineConfig(kernels=kernels, dtype=dtype, **limits)  # type: ignore[arg-type]
            one = tiny_engine(config, twins=dtype == "fp32")
        else:
            one = engine(kernels, dtype)
        known = {one.name: one for one in find_features(one, one.tokenizer.encode(TEXT))}
        combined = [
            replace(one.needle(), params=replace(one.needle().params, logprobs=2))
            for one in combinations(known, 3)
        ]
        others = settings(known)
        for needle in (plain(0.0), plain(0.9), *combined):
            tally = prick(one, needle, BOTH, 2, scale=SMALL, others=others)
            digest = hashlib.sha256(repr(next(iter(tally.outcomes))).encode()).hexdigest()
            lines.append(f"{dtype} {tally.num_distinct} {digest}")
    return lines


LIMITS: dict[str, dict[str, object]] = {
    "usual": {},
    "tight": {"max_num_seqs": 4, "max_pass_tokens": 48, "kv_memory": "256KiB", "prefix_cache": False},
    "narrow": {
        "max_num_seqs": 32,
        "max_pass_tokens": 128,
        "kv_memory": "64MiB",
    },  # certified in a few seconds
}

if __name__ == "__main__":
    print("\n".join(digests(sys.argv[1], **LIMITS[sys.argv[2]])))  # type: ignore[arg-type]
