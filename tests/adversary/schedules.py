"""Hostile schedules: lengths around page and window edges, constant preemption, and an engine that
lives for many thousands of tokens and evicts cached pages all the time.
"""

import itertools
import random
from dataclasses import replace

from adversary.certificates import MODES, ask_in_load
from adversary.evidence import Evidence
from adversary.hostile_models import Target, fresh_certificates
from adversary.questions import answer
from holdfast.bench.load import ProbeRequest
from holdfast.bench.stress import result_bits, run_alone
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine

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


def attack_edges(target: Target, num_loads: int, window: int | None = None) -> Evidence:
    """Prompts that end near a page, reference or window edge, with the prefix cache full of them."""
    evidence = Evidence("page and window edges", target.name)
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
    return evidence


def attack_preemption(target: Target, num_rounds: int) -> Evidence:
    """Answers that grow into too few pages, so that requests are preempted again and again."""
    evidence = Evidence("constant preemption", target.name)
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
    return evidence


def attack_long_life(target: Target, num_tokens: int, num_pages: int = 24) -> Evidence:
    """One engine, never restarted, until it has generated so many tokens.

    Its few pages hold a changing set of cached prefixes. Some requests are aborted half-way.
    """
    evidence = Evidence("long life with eviction", target.name)
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
    return evidence
