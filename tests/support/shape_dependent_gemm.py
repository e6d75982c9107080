"""Matrix products whose order of summation depends on their shape, in place of the CPU's BLAS.

A BLAS library chooses its order of summation by the shape and by the CPU, so equal bits for two
shapes on one CPU prove nothing. With these products two shapes give different bits on every
machine. A test of bits that passes with them shows that our code calls the same shape, or that its
sums are exact.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


@cache
def _order(shape: tuple[int, ...], num_terms: int) -> list[int]:
    """A permutation of K, fixed for a shape."""
    order: list[int] = np.random.default_rng(shape).permutation(num_terms).tolist()
    return order


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """[..., M, K] x [..., K, N] -> fp32 [..., M, N].

    Elementwise, so that no row depends on its place in the product.
    """
    a, b = a.to(torch.float32), b.to(torch.float32)
    num_rows, width, num_columns = a.shape[-2], a.shape[-1], b.shape[-1]
    is_single = a.dim() == 3 and a.shape[0] == 1  # libraries compute a batch of one by another kernel
    total = torch.zeros((*a.shape[:-1], num_columns))
    for k in _order((num_rows, width, num_columns, is_single), width):
        total += a[..., :, k, None] * b[..., k, None, :]
    return total


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    assert bias is None
    return _multiply(x, weight.T).to(x.dtype)


def _mm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    found = _multiply(a, b).to(a.dtype)
    return found if out is None else out.copy_(found)


def _bmm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    return _multiply(a, b).to(out_dtype or a.dtype)


def use_shape_dependent_gemm(monkeypatch: pytest.MonkeyPatch) -> None:
    """For torch, on the CPU."""
    monkeypatch.setattr(F, "linear", _linear)
    monkeypatch.setattr(torch, "mm", _mm)
    monkeypatch.setattr(torch, "bmm", _bmm)


def use_shape_dependent_dot(interpreter: Any) -> None:
    """For `tl.dot` in Triton's interpreter, which multiplies with numpy, for the rest of the
    process."""

    def create_dot(
        self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any
    ) -> Any:
        total = _multiply(*(torch.from_numpy(np.ascontiguousarray(one.data)) for one in (a, b))).numpy()
        return interpreter.TensorHandle(total + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
