"""Attacks on the certificate: models whose weights hide that batch sizes disagree."""

import random

from adversary.evidence import Evidence
from adversary.hostile_models import (
    NAN_TOKENS,
    Edit,
    Target,
    fresh_certificates,
    nan_rows,
    zero_layers,
    zero_projections,
)
from adversary.questions import QUESTIONS, Questions, answer, ask
from holdfast.bench.load import LoadScale, ProbeRequest, draw_load
from holdfast.bench.stress import result_bits, run_in_load
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import DeterminismMode

MODES: tuple[DeterminismMode, ...] = ("auto", "verify")
_SMALL_LOADS = LoadScale(max_background=5, max_prompt_len=40, max_tokens=8)


def ask_in_loads(
    engine: Engine, evidence: Evidence, num_loads: int, questions: Questions = QUESTIONS
) -> None:
    """Ask alone, together, and every question in random loads, in `auto` and in `verify`.

    The engine is restarted for each load, so it must not be used any more.
    """
    ask(engine, evidence, questions)
    for number in range(num_loads):
        for name, probe in questions.items():
            ask_in_load(engine, evidence, name, probe, number)


def ask_in_load(engine: Engine, evidence: Evidence, name: str, probe: ProbeRequest, number: int) -> None:
    """Ask one question in a random load; the number decides the load and the mode."""
    load = draw_load(random.Random(f"{number} {name}"), engine, probe, MODES[number % 2], _SMALL_LOADS)
    with evidence.refusing():
        run = run_in_load(engine, load, probe)
        evidence.add(engine.fingerprint.digest, name, result_bits(run.result))
        if run.counters.num_revocations:
            evidence.fail("a certified pass was not canonical")


def attack_shared_certificate(target: Target, num_loads: int, questions: Questions = QUESTIONS) -> Evidence:
    """A model of zeros is loaded first, then an ordinary one and one of near ties, of its shape."""
    evidence = Evidence("zero model loaded first", target.name)
    with fresh_certificates():
        target.open(target.weights(zero_projections))
        for near_ties in (False, True):
            engine = target.open(target.weights(near_ties=near_ties))
            ask_in_loads(engine, evidence, num_loads, questions)
    return evidence


def attack_unseen_layers(target: Target, num_loads: int, questions: Questions = QUESTIONS) -> Evidence:
    """Five layers, of which the first, the middle and the last are zero."""
    evidence = Evidence("layers 0, 2 and 4 of 5 are zero", target.name)
    with fresh_certificates():
        engine = target.open(target.weights(zero_layers(0, 2, 4)))
        ask_in_loads(engine, evidence, num_loads, questions)
    return evidence


def attack_weights(target: Target, name: str, edit: Edit, num_loads: int) -> Evidence:
    """One hostile model alone, in loads, and interleaved with an ordinary model of its shape."""
    evidence = Evidence(name, target.name)
    with fresh_certificates():
        hostile, ordinary = target.open(target.weights(edit, near_ties=True)), target.open()
        ask(hostile, evidence)
        ask(ordinary, evidence)
        ask_in_loads(hostile, evidence, num_loads)
        ask_in_loads(ordinary, evidence, num_loads)
    return evidence


def attack_nan_rows(target: Target, num_rounds: int) -> Evidence:
    """Requests whose activations are not numbers, beside the questions.

    Their own answers are outside the promise. They must end, and the others must not change.
    """
    evidence = Evidence("NaN and infinite rows", target.name)
    with fresh_certificates():
        engine = target.open(target.weights(nan_rows))
        ask(engine, evidence)
        rng = random.Random(0)
        for number in range(num_rounds):
            poisoned = [_poisoned(rng, deterministic=number % 2 == 0) for _ in range(3)]
            probes = [*poisoned, *QUESTIONS.values()]
            with evidence.refusing():
                results = answer(engine, probes)[len(poisoned) :]
                for name, result in zip(QUESTIONS, results, strict=True):
                    evidence.add(engine.fingerprint.digest, name, result_bits(result))
        if engine.revocation is not None:
            evidence.fail(f"a certified pass was not canonical: {engine.revocation}")
    return evidence


def _poisoned(rng: random.Random, *, deterministic: bool) -> ProbeRequest:
    prompt = [rng.randrange(20, 200) for _ in range(rng.randint(2, 24))]
    prompt[rng.randrange(len(prompt))] = rng.choice(NAN_TOKENS)
    params = SamplingParams(
        max_tokens=8, temperature=rng.choice([0.0, 1.0]), seed=1, ignore_eos=True, deterministic=deterministic
    )
    return ProbeRequest(tuple(prompt), params)
