"""Hostile schedules: lengths around page and window edges, constant preemption, and an engine that
lives for many thousands of tokens and evicts cached pages all the time; other shapes, dtypes and file
formats.
"""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from adversary.evidence import Evidence
from adversary.hostile_models import HOSTILE_SHAPES, Target, fresh_certificates
from adversary.questions import MODES, answer, ask_in_load, ask_in_loads
from holdfast import LLM
from holdfast.bench.load import ProbeRequest
from holdfast.bench.stress import result_bits, run_alone
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import small_target

TARGETS: list[tuple[KernelBackend, str]] = [("c", "fp32"), ("c", "bf16"), ("c", "fp16"), ("torch", "fp32")]
GGUF_TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
_SPREAD = (-2, -1, 0, 1, 2)


def edge_lengths(engine: Engine, window: int | None = None) -> list[int]:
    """Prompt lengths around one and two pages, the reference's tokens, and a sliding window."""
    page, reference = engine.scheduler.pool.page_size, engine.scheduler.config.reference_tokens
    edges = {page, 2 * page, reference, 2 * reference, *([window] if window is not None else [])}
    return sorted({edge + step for edge in edges for step in _SPREAD if edge + step > 0})


def _probe(length: int, num_tokens: int = 6, **settings: object) -> ProbeRequest:
    rng = random.Random(length)
    params = SamplingParams(
        max_tokens=num_tokens, temperature=0.9, seed=length, ignore_eos=True, logprobs=1, deterministic=True
    )
    prompt = tuple(rng.randrange(20, 250) for _ in range(length))
    return ProbeRequest(prompt, replace(params, **settings))  # type: ignore[arg-type]


def attack_edges(target: Target, num_loads: int, window: int | None = None) -> None:
    """Prompts that end near a page, reference or window edge, with the prefix cache full of them."""
    evidence = Evidence()
    with fresh_certificates():
        engine = target.open()
        for length in edge_lengths(engine, window):
            probe, name = _probe(length), f"{length} tokens"
            fingerprint = engine.fingerprint.digest
            evidence.add(fingerprint, name, result_bits(run_alone(engine, probe)))
            longer = ProbeRequest((*probe.prompt, 21, 22, 23), probe.params)
            warm = engine.restarted(engine.scheduler.config)
            for batch in ([probe], [longer, probe], [probe, longer]):
                results = answer(warm, batch)
                evidence.add(fingerprint, name, result_bits(results[batch.index(probe)]))
            for number in range(num_loads):
                ask_in_load(engine, evidence, name, probe, number)
    evidence.assert_held()


def attack_preemption(target: Target, num_rounds: int) -> None:
    """Answers that grow into too few pages, so that requests are preempted again and again."""
    evidence = Evidence()
    with fresh_certificates():
        engine = target.open()
        page = engine.scheduler.pool.page_size
        probes = {f"request {number}": _probe(page - 3 + number, 3 * page) for number in range(4)}
        for name, probe in probes.items():
            evidence.add(engine.fingerprint.digest, name, result_bits(run_alone(engine, probe)))
        num_preempted = 0
        for number in range(num_rounds):
            config = replace(
                engine.scheduler.config, determinism=MODES[number % 2], prefix_cache=number % 4 < 2
            )
            crowded = engine.restarted(config, num_pages=5 + number % 3)
            results = answer(crowded, list(probes.values()))
            num_preempted += sum(result.stats.preemptions for result in results)
            for name, result in zip(probes, results, strict=True):
                evidence.add(engine.fingerprint.digest, name, result_bits(result))
        if not num_preempted:
            evidence.fail("no request was preempted, so nothing was tested")
    evidence.assert_held()


def attack_long_life(target: Target, num_tokens: int, num_pages: int = 24) -> None:
    """One engine, never restarted, until it has generated so many tokens.

    Its few pages hold a changing set of cached prefixes. Some requests are aborted half-way.
    """
    evidence = Evidence()
    with fresh_certificates():
        engine = target.open()
        probes = [_probe(10 + 7 * number, 8) for number in range(9)]
        for number, probe in enumerate(probes):
            evidence.add(
                engine.fingerprint.digest, f"request {number}", result_bits(run_alone(engine, probe))
            )
        engine = engine.restarted(replace(engine.scheduler.config, spot_check_rate=0.05), num_pages=num_pages)
        generated = 0
        for rng in map(random.Random, itertools.count()):
            chosen = [rng.randrange(len(probes)) for _ in range(rng.randint(1, 6))]
            doomed = engine.prepare(_probe(rng.randint(1, 90)).prompt, probes[0].params)
            engine.submit(doomed)
            for _ in range(rng.randint(0, 4)):
                engine.step()
            engine.abort(doomed.request_id)
            results = answer(engine, [probes[number] for number in chosen])
            for number, result in zip(chosen, results, strict=True):
                evidence.add(engine.fingerprint.digest, f"request {number}", result_bits(result))
            generated += sum(len(result.choices[0].token_ids) for result in results)
            if generated >= num_tokens:
                break
        if engine.revocation is not None:
            evidence.fail(f"a certified pass was not canonical: {engine.revocation}")
    evidence.assert_held()


def test_page_and_window_edges() -> None:
    shape = HOSTILE_SHAPES["sliding window"]
    target = Target("c", "bf16", shape={**small_target("c").shape, **shape})
    attack_edges(target, 0, shape["sliding_window"])


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE_SHAPES)
@pytest.mark.parametrize(("kernels", "dtype"), TARGETS)
def test_edges_on_every_shape(kernels: KernelBackend, dtype: str, name: str) -> None:
    shape = HOSTILE_SHAPES[name]
    attack_edges(Target(kernels, dtype, shape=shape), 2, shape.get("sliding_window"))


def test_constant_preemption() -> None:
    attack_preemption(small_target("c", num_hidden_layers=1), 2)


@pytest.mark.long
@pytest.mark.parametrize(("kernels", "dtype"), TARGETS)
def test_constant_preemption_long(kernels: KernelBackend, dtype: str) -> None:
    attack_preemption(Target(kernels, dtype), 8)


@pytest.mark.parametrize("num_tokens", [150, pytest.param(20_000, marks=pytest.mark.long)])
def test_long_life_with_eviction(num_tokens: int) -> None:
    attack_long_life(small_target("c", num_hidden_layers=1), num_tokens)


@pytest.mark.long
@pytest.mark.parametrize("quant", GGUF_TYPES)
@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_gguf_types(tmp_path: Path, kernels: KernelBackend, quant: str) -> None:
    gguf = pytest.importorskip("gguf")
    assert quant in gguf.GGMLQuantizationType.__members__
    from support.tiny import tiny_gguf

    path = tiny_gguf(tmp_path / "model.gguf", "llama", quant)
    evidence = Evidence()
    for dtype in ("bf16", "fp32"):
        llm = LLM(
            str(path), dtype=dtype, kernels=kernels, max_num_seqs=8, max_pass_tokens=64, kv_memory="8MiB"
        )
        ask_in_loads(llm.engine, evidence, 2)
    evidence.assert_held()
    assert evidence.num_fingerprints == 2  # one for each dtype


@pytest.mark.long
def test_limits_do_not_change_the_fingerprint_or_a_bit() -> None:
    evidence = Evidence()
    target = small_target("c")
    weights = target.weights()
    for seqs, tokens, memory in ((2, 32, "1MiB"), (8, 64, "2MiB"), (32, 512, "8MiB")):
        limits = {"max_num_seqs": seqs, "max_pass_tokens": tokens, "kv_memory": memory}
        ask_in_loads(replace(target, limits=limits).open(weights), evidence, 2)
    evidence.assert_held()
    assert evidence.num_fingerprints == 1
