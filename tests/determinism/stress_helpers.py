"""Shared by the stress tests.

Run as a program, it runs stress tests in its own process and prints digests of the results.
"""

import hashlib
import random
import sys
from dataclasses import replace
from functools import cache

from holdfast.bench.determinism import PROMPT as PROMPT_TEXT
from holdfast.bench.features import Feature, combine, find_features
from holdfast.bench.load import LoadScale, ProbeRequest
from holdfast.bench.stress import ResultBits, StressSummary, stress_test
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode
from support.tiny import tiny_engine

MODES: tuple[DeterminismMode, ...] = ("auto", "verify")
SMALL = LoadScale(max_background=6, max_prompt_len=40, max_tokens=8)
LARGE = LoadScale(max_background=24, max_prompt_len=300)
FEATURES = (
    "greedy", "temperature", "top-k", "top-p", "min-p", "n",
    "presence penalty", "frequency penalty", "repetition penalty", "logit bias",
    "stop text", "stop token", "min tokens", "ignore eos",
    "allowed tokens", "bad tokens", "bad words",
    "logprobs", "named logprobs", "prompt logprobs", "scores only", "echo",
    "JSON schema", "JSON object", "regex", "choice", "grammar",
    "copied text",
)  # fmt: skip

_rng = random.Random(1)
PROMPT = tuple(_rng.randrange(2, 400) for _ in range(37))


def plain_probe(temperature: float, *, deterministic: bool = True) -> ProbeRequest:
    """A request for 24 tokens and their logprobs."""
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
    """A tiny model.

    In fp32 every token has a near tie. Tests restart the engine and never run it directly.
    """
    num_tokens = {} if kernels == "c" else {"max_pass_tokens": 64}  # fewer batch sizes to certify
    config = EngineConfig(kernels=kernels, dtype=dtype, max_num_seqs=32, kv_memory="64MiB", **num_tokens)
    return tiny_engine(config, near_ties=dtype == "fp32")


@cache
def features(kernels: KernelBackend, dtype: str) -> dict[str, Feature]:
    one = engine(kernels, dtype)
    return {feature.name: feature for feature in find_features(one, one.tokenizer.encode(PROMPT_TEXT))}


def combinations(known: dict[str, Feature], count: int, seed: int = 0) -> list[Feature]:
    rng = random.Random(seed)
    return [combine(rng, tuple(known.values())) for _ in range(count)]


def background_params(known: dict[str, Feature]) -> list[SamplingParams]:
    """Settings of background requests."""
    return [feature.probe().params for feature in (*known.values(), *combinations(known, 12, seed=1))]


def only_result(summary: StressSummary) -> ResultBits:
    """The result of all runs. Fails if there is more than one."""
    assert summary.num_distinct == 1, f"{summary.num_distinct} different results: {list(summary.results)}"
    assert summary.num_revocations == 0
    return next(iter(summary.results))


def digests(kernels: KernelBackend, **limits: object) -> list[str]:
    """One line per probe: its dtype, its number of distinct results, and a digest of the first.
    limits are engine options. The torch backend is slow and runs in fp32 only, with its near ties.
    """
    lines = []
    for dtype in ("fp32", "bf16") if kernels == "c" else ("fp32",):
        if limits:
            config = EngineConfig(kernels=kernels, dtype=dtype, **limits)  # type: ignore[arg-type]
            one = tiny_engine(config, near_ties=dtype == "fp32")
        else:
            one = engine(kernels, dtype)
        known = {one.name: one for one in find_features(one, one.tokenizer.encode(PROMPT_TEXT))}
        combined = [
            replace(one.probe(), params=replace(one.probe().params, logprobs=2))
            for one in combinations(known, 3)
        ]
        others = background_params(known)
        for probe in (plain_probe(0.0), plain_probe(0.9), *combined):
            summary = stress_test(one, probe, MODES, 2, scale=SMALL, others=others)
            digest = hashlib.sha256(repr(next(iter(summary.results))).encode()).hexdigest()
            lines.append(f"{dtype} {summary.num_distinct} {digest}")
    return lines


LIMITS: dict[str, dict[str, object]] = {
    "usual": {},
    "tight": {"max_num_seqs": 4, "max_pass_tokens": 48, "kv_memory": "256KiB", "prefix_cache": False},
    # fewer batch sizes to certify
    "narrow": {"max_num_seqs": 32, "max_pass_tokens": 64, "kv_memory": "64MiB"},
}

if __name__ == "__main__":
    for name in sys.argv[2:]:
        print("\n".join(digests(sys.argv[1], **LIMITS[name])))  # type: ignore[arg-type]
