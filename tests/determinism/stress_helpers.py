"""What the probe tests share; run as a program, it pricks in a process of its own and prints the digests of what it saw."""

import hashlib
import random
import sys
from dataclasses import replace
from functools import cache

from holdfast.bench.determinism.features import Feature, combine, find_features
from holdfast.bench.determinism.matrix import PROMPT as TEXT
from holdfast.bench.determinism.stress import ResultBits, StressSummary, stress_test
from holdfast.bench.determinism.stress_load import LoadScale, ProbeRequest
from holdfast.bench.tiny import tiny_engine
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode

BOTH: tuple[DeterminismMode, ...] = ("auto", "verify")
SMALL = LoadScale(max_background=6, max_prompt_len=40, max_tokens=8)
LARGE = LoadScale(max_background=24, max_prompt_len=300)
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


def plain(temperature: float, *, deterministic: bool = True) -> ProbeRequest:
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
    return ProbeRequest(PROMPT, params)


@cache
def engine(kernels: KernelBackend, dtype: str) -> Engine:
    """A tiny model in which, in fp32, every token has a near twin. It is only ever restarted, never run."""
    config = EngineConfig(kernels=kernels, dtype=dtype, max_num_seqs=32, kv_memory="64MiB")
    return tiny_engine(config, near_ties=dtype == "fp32")


@cache
def features(kernels: KernelBackend, dtype: str) -> dict[str, Feature]:
    one = engine(kernels, dtype)
    return {feature.name: feature for feature in find_features(one, one.tokenizer.encode(TEXT))}


def combinations(known: dict[str, Feature], count: int, seed: int = 0) -> list[Feature]:
    rng = random.Random(seed)
    return [combine(rng, tuple(known.values())) for _ in range(count)]


def settings(known: dict[str, Feature]) -> list[SamplingParams]:
    """What neighbours may ask for."""
    return [feature.probe().params for feature in (*known.values(), *combinations(known, 12, seed=1))]


def outcome(summary: StressSummary) -> ResultBits:
    """The one answer all runs gave."""
    assert summary.num_distinct == 1, f"{summary.num_distinct} different answers: {list(summary.results)}"
    assert summary.num_revocations == 0
    return next(iter(summary.results))


def digests(kernels: KernelBackend, **limits: object) -> list[str]:
    """One line a probe: its dtype, how many outcomes it had, and a digest of the first. limits change the engine's own."""
    lines = []
    for dtype in ("fp32", "bf16"):
        if limits:
            config = EngineConfig(kernels=kernels, dtype=dtype, **limits)  # type: ignore[arg-type]
            one = tiny_engine(config, near_ties=dtype == "fp32")
        else:
            one = engine(kernels, dtype)
        known = {one.name: one for one in find_features(one, one.tokenizer.encode(TEXT))}
        combined = [
            replace(one.probe(), params=replace(one.probe().params, logprobs=2))
            for one in combinations(known, 3)
        ]
        others = settings(known)
        for probe in (plain(0.0), plain(0.9), *combined):
            summary = stress_test(one, probe, BOTH, 2, scale=SMALL, others=others)
            digest = hashlib.sha256(repr(next(iter(summary.results))).encode()).hexdigest()
            lines.append(f"{dtype} {summary.num_distinct} {digest}")
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
