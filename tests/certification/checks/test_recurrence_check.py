"""The check of recurrences accepts the backends, and notices what depends on the pass."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.certification.certificate import run_check
from holdfast.certification.checks.recurrence import check_recurrence
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.forward_batch import ForwardBatch, StateLayer
from holdfast.numerics.ops import Backend
from support.recurrence import KINDS, make_weights

SIZES = (1, 2, 16, 20, 32)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return open_backend(torch.bfloat16, kernels="c", num_threads=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_quick", [False, True])
def test_check_accepts_a_backend(backend: Backend, kind: str, is_quick: bool) -> None:
    found = run_check(check_recurrence(backend, make_weights(kind), SIZES, name="r", is_quick=is_quick))
    assert found.agrees
    assert found.num_comparisons > 200


class _Faulty:
    """A backend with a gated delta rule that is wrong in some passes."""

    def __init__(self, backend: Any, fault: str) -> None:
        self._backend, self._fault = backend, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def gated_delta(self, x: Tensor, weights: Any, layer: StateLayer, batch: ForwardBatch) -> Tensor:
        assert batch.recurrent is not None
        spans = batch.recurrent.spans.clone()
        if self._fault == "nothing is replayed":
            spans[:, 2] = torch.where(spans[:, 3] <= spans[:, 1], spans[:, 2], spans[:, 1])
        if self._fault == "stored too late":
            spans[:, 3] = torch.where(spans[:, 3] > spans[:, 2], spans[:, 1] + spans[:, 5] - spans[:, 4], 0)
        recurrent = replace(batch.recurrent, spans=spans)
        out: Tensor = self._backend.gated_delta(x, weights, layer, replace(batch, recurrent=recurrent))
        if self._fault == "a size" and len(x) == 20:
            layer.state.mul_(1 + 2**-20)
        if self._fault == "many spans" and len(spans) == 33:
            out = out * (1 + 2**-7)
        return out


@pytest.mark.parametrize(
    ("fault", "differing"),
    [("a size", {20}), ("many spans", {0}), ("nothing is replayed", {0}), ("stored too late", {0})],
)
def test_check_notices_a_fault(backend: Backend, fault: str, differing: set[int]) -> None:
    faulty: Any = _Faulty(backend, fault)
    found = run_check(check_recurrence(faulty, make_weights("gated_delta"), (*SIZES, 64), name="r"))
    assert set(found.sizes_differing) == differing
