"""Checks that only a GPU's certificate contains, run on the C backend: they accept it and detect a fault.
And the check of attention with contexts shorter than its probes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.certification.certificate import run_check
from holdfast.certification.checks.attention import check_attention, check_long_attention
from holdfast.certification.checks.operations import GemmCase, check_fast_head
from holdfast.models.dummy import tiny_config
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.ops import Backend
from holdfast.numerics.settings import apply_numeric_settings

MODEL = replace(tiny_config(), num_heads=4, num_kv_heads=2, head_dim=16, layer_windows=(64,))
MAX_LEN = 200
HEAD_SIZES, PASS_SIZES = (1, 2, 3, 16, 32), (1, 2, 3, 16, 32, 64)


class FaultyBackend:
    """Batches of one size differ in the last bits, in GEMMs in fast form and in attention."""

    def __init__(self, backend: Any, size: int) -> None:
        self._backend, self._size = backend, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def logits(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        out: Tensor = self._backend.logits(x, w, canonical=canonical)
        return out if canonical or len(x) != self._size else out * (1 + 2**-20)

    def attention(self, q: Tensor, *args: Any, **settings: Any) -> Tensor:
        out: Tensor = self._backend.attention(q, *args, **settings)
        return out if len(q) != self._size else out * (1 + 2**-20)


class StrictBackend(FaultyBackend):
    """Attention refuses spans that do not lie in the context."""

    def attention(self, q: Tensor, layer: Any, batch: Any, **settings: Any) -> Tensor:
        assert batch.positions.min() >= 0 and batch.positions.max() < self._size
        assert (batch.span_starts.diff() > 0).all()
        return self._backend.attention(q, layer, batch, **settings)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return open_backend(torch.float32, kernels="c", num_threads=apply_numeric_settings().threads)


@pytest.fixture(scope="module")
def head(backend: Backend) -> GemmCase:
    weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(1))
    return GemmCase("head", backend.pack(weight), is_head=True)


def test_batch_invariant_head_is_certified_in_fast_form(backend: Backend, head: GemmCase) -> None:
    check = run_check(check_fast_head(backend, head, HEAD_SIZES, PASS_SIZES))
    assert check.agrees and check.sizes_tested == HEAD_SIZES


def test_one_differing_head_size_leaves_no_pass_size_certified(backend: Backend, head: GemmCase) -> None:
    faulty: Any = FaultyBackend(backend, 3)
    check = run_check(check_fast_head(faulty, head, HEAD_SIZES, PASS_SIZES))
    assert check.sizes_differing == PASS_SIZES


@pytest.mark.parametrize("context", [1, 2, 3, 4, 5, 8, 14, 15])
def test_attention_over_a_short_context_agrees(backend: Backend, context: int) -> None:
    strict: Any = StrictBackend(backend, context)
    sizes = (1, 2, 3, 16)
    assert run_check(check_attention(strict, MODEL, context, sizes, name="attention", is_quick=True)).agrees
    assert run_check(check_long_attention(strict, MODEL, context, name="attention")).agrees


def test_attention_over_the_longest_context_agrees(backend: Backend) -> None:
    assert run_check(check_long_attention(backend, MODEL, MAX_LEN, name="attention")).agrees


def test_differing_attention_over_the_longest_context_is_reported_as_size_0(backend: Backend) -> None:
    faulty: Any = FaultyBackend(backend, 7)
    assert run_check(check_long_attention(faulty, MODEL, MAX_LEN, name="attention")).sizes_differing == (0,)
