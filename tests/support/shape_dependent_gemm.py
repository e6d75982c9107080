"""Matrix products whose order of summation depends on their shape, in place of the CPU's BLAS.

A BLAS library chooses its order of summation by the shape and by the CPU, so equal bits for two
shapes on one CPU prove nothing. With these products two shapes give different bits on every
machine. A test of bits that passes with them shows that our code calls the same shape, or that its
sums are exact.

Some libraries choose by torch's settings as well, by the fp32 precision and the number of threads.
With `by_settings` these products do so, too.
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


_MAX_PRODUCTS = 1 << 18  # numbers at once, small enough for a cache
_PRECISIONS = ("highest", "high", "medium")
_by_settings = False


def _settings() -> tuple[int, ...]:
    """The settings that a library may choose by."""
    if not _by_settings:
        return ()
    return (1 + _PRECISIONS.index(torch.get_float32_matmul_precision()), torch.get_num_threads())


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """[..., M, K] x [..., K, N] -> fp32 [..., M, N].

    numpy adds along K one after the other, because K is not the last axis. So no row depends on its
    place in the product.
    """
    a, b = a.to(torch.float32), b.to(torch.float32)
    num_rows, width, num_columns = a.shape[-2], a.shape[-1], b.shape[-1]
    is_single = a.dim() == 3 and a.shape[0] == 1  # libraries compute a batch of one by another kernel
    order = _order((num_rows, width, num_columns, is_single, *_settings()), width)
    left, right = a[..., order].numpy(), b[..., order, :].numpy()
    step = max(1, _MAX_PRODUCTS // max(1, right.size))
    with np.errstate(all="ignore"):  # [..., some of M, K, N] -> [..., some of M, N]
        parts = [
            np.add.reduce(left[..., row : row + step, :, None] * right[..., None, :, :], axis=-2)
            for row in range(0, num_rows, step)
        ]
    return torch.from_numpy(np.concatenate(parts, axis=-2)) if parts else a @ b


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    assert bias is None
    return _multiply(x, weight.T).to(x.dtype)


def _mm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    found = _multiply(a, b).to(a.dtype)
    return found if out is None else out.copy_(found)


def _bmm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    return _multiply(a, b).to(out_dtype or a.dtype)


def use_shape_dependent_gemm(monkeypatch: pytest.MonkeyPatch, *, by_settings: bool = False) -> None:
    """For torch, on the CPU."""
    monkeypatch.setitem(globals(), "_by_settings", by_settings)
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
