"""Weights that hide from a certificate that batch sizes disagree.

The products here differ for every number of rows, as those of a BLAS library do on some CPUs.
"""

import pytest

from adversary.certificates import (
    attack_nan_rows,
    attack_shared_certificate,
    attack_unseen_layers,
    attack_weights,
)
from adversary.hostile_models import (
    HOSTILE_WEIGHTS,
    Target,
    fresh_certificates,
    zero_projections,
)
from support.adversary_targets import FEW, assert_held, small_target
from support.shape_dependent_gemm import use_shape_dependent_gemm


def test_zero_model_of_the_same_shape_loaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    use_shape_dependent_gemm(monkeypatch)
    assert_held(attack_shared_certificate(small_target("torch", num_hidden_layers=1), 0, FEW))


def test_zero_layers_where_a_certificate_would_look(monkeypatch: pytest.MonkeyPatch) -> None:
    use_shape_dependent_gemm(monkeypatch)
    assert_held(attack_unseen_layers(small_target("torch", num_hidden_layers=5), 0, FEW))


@pytest.mark.long
def test_zero_weights_in_random_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    use_shape_dependent_gemm(monkeypatch)
    assert_held(attack_shared_certificate(small_target("torch", num_hidden_layers=1), 6))
    assert_held(attack_unseen_layers(small_target("torch", num_hidden_layers=5), 6))


@pytest.mark.long
def test_certificate_of_a_zero_model_lists_no_size_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the model of zeros itself gets the certificate of its shape."""
    use_shape_dependent_gemm(monkeypatch)
    target = small_target("torch", num_hidden_layers=1)
    with fresh_certificates():
        certificate = target.open(target.weights(zero_projections)).certificate
    assert certificate is not None
    assert set(certificate.sizes) <= {16, 32}  # multiples of the reference


def test_hostile_weights_interleaved_with_ordinary_ones() -> None:
    assert_held(attack_weights(small_target("c"), "pruned weights", HOSTILE_WEIGHTS["pruned weights"], 1))


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE_WEIGHTS)
@pytest.mark.parametrize(("kernels", "dtype"), [("c", "bf16"), ("torch", "fp32"), ("torch", "bf16")])
def test_hostile_weights_on_every_backend(kernels: str, dtype: str, name: str) -> None:
    assert_held(attack_weights(Target(kernels, dtype), name, HOSTILE_WEIGHTS[name], 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("kernels", ["c", pytest.param("torch", marks=pytest.mark.long)])
def test_requests_with_nan_and_infinite_activations_harm_no_other(kernels: str) -> None:
    assert_held(attack_nan_rows(small_target(kernels), 2))  # type: ignore[arg-type]
