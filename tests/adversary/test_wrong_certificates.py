"""Weights that hide from a certificate that batch sizes disagree.

The products here differ for every number of rows, as those of a BLAS library do on some CPUs.
"""

import random

import pytest

from adversary.evidence import Evidence
from adversary.hostile_models import (
    HOSTILE_WEIGHTS,
    NAN_TOKENS,
    Target,
    fresh_certificates,
    nan_rows,
    zero_layers,
    zero_projections,
)
from adversary.questions import QUESTIONS, answer, ask, ask_in_loads
from holdfast.bench.load import ProbeRequest
from holdfast.bench.stress import result_bits
from holdfast.core.sampling_params import SamplingParams
from holdfast.numerics.recipe import KernelBackend
from support.adversary_targets import FEW, small_target
from support.shape_dependent_gemm import use_shape_dependent_gemm

LOADS = pytest.mark.parametrize("num_loads", [0, pytest.param(6, marks=pytest.mark.long)])


@LOADS
def test_zero_model_of_the_same_shape_loaded_first(monkeypatch: pytest.MonkeyPatch, num_loads: int) -> None:
    """Then an ordinary one and one of near ties."""
    use_shape_dependent_gemm(monkeypatch)
    evidence, target = Evidence(), small_target("torch", num_hidden_layers=1)
    with fresh_certificates():
        target.open(target.weights(zero_projections))
        for near_ties in (False, True):
            engine = target.open(target.weights(near_ties=near_ties))
            ask_in_loads(engine, evidence, num_loads, QUESTIONS if num_loads else FEW)
    evidence.assert_held()


@LOADS
def test_zero_layers_where_a_certificate_would_look(monkeypatch: pytest.MonkeyPatch, num_loads: int) -> None:
    """The first, the middle and the last of five."""
    use_shape_dependent_gemm(monkeypatch)
    evidence, target = Evidence(), small_target("torch", num_hidden_layers=5)
    with fresh_certificates():
        engine = target.open(target.weights(zero_layers(0, 2, 4)))
        ask_in_loads(engine, evidence, num_loads, QUESTIONS if num_loads else FEW)
    evidence.assert_held()


@pytest.mark.long
def test_certificate_of_a_zero_model_lists_no_size_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the model of zeros itself gets the certificate of its shape."""
    use_shape_dependent_gemm(monkeypatch)
    target = small_target("torch", num_hidden_layers=1)
    with fresh_certificates():
        certificate = target.open(target.weights(zero_projections)).certificate
    assert certificate is not None
    assert set(certificate.sizes) <= {16, 32}  # multiples of the reference


def attack_weights(target: Target, name: str, num_loads: int) -> None:
    """One hostile model alone, in loads, and interleaved with an ordinary model of its shape."""
    evidence = Evidence()
    with fresh_certificates():
        hostile = target.open(target.weights(HOSTILE_WEIGHTS[name], near_ties=True))
        ordinary = target.open()
        ask(hostile, evidence)
        ask(ordinary, evidence)
        ask_in_loads(hostile, evidence, num_loads)
        ask_in_loads(ordinary, evidence, num_loads)
    evidence.assert_held()


def test_hostile_weights_interleaved_with_ordinary_ones() -> None:
    attack_weights(small_target("c"), "pruned weights", 1)


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE_WEIGHTS)
@pytest.mark.parametrize(("kernels", "dtype"), [("c", "bf16"), ("torch", "fp32"), ("torch", "bf16")])
def test_hostile_weights_on_every_backend(kernels: KernelBackend, dtype: str, name: str) -> None:
    attack_weights(Target(kernels, dtype), name, 4)


@pytest.mark.parametrize("kernels", ["c", pytest.param("torch", marks=pytest.mark.long)])
def test_requests_with_nan_and_infinite_activations_harm_no_other(kernels: KernelBackend) -> None:
    """Their own answers are outside the promise. They must end, and the others must not change."""
    evidence, target = Evidence(), small_target(kernels)
    with fresh_certificates():
        engine = target.open(target.weights(nan_rows))
        ask(engine, evidence)
        rng = random.Random(0)
        for deterministic in (True, False):
            poisoned = [_poisoned(rng, deterministic=deterministic) for _ in range(3)]
            with evidence.refusing():
                results = answer(engine, [*poisoned, *QUESTIONS.values()])
                assert {one.error_code for one in results[: len(poisoned)]} == {"not_finite"}
                for name, result in zip(QUESTIONS, results[len(poisoned) :], strict=True):
                    evidence.add(engine.fingerprint.digest, name, result_bits(result))
    assert engine.revocation is None
    evidence.assert_held()


def _poisoned(rng: random.Random, *, deterministic: bool) -> ProbeRequest:
    prompt = [rng.randrange(20, 200) for _ in range(rng.randint(2, 24))]
    prompt[rng.randrange(len(prompt))] = rng.choice(NAN_TOKENS)
    params = SamplingParams(
        max_tokens=8, temperature=rng.choice([0.0, 1.0]), seed=1, ignore_eos=True, deterministic=deterministic
    )
    return ProbeRequest(tuple(prompt), params)
