"""Linear layers: near the exact product in every dtype, and bits that do not depend on the other
rows of the batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.ops import Backend

NUM_ROWS = [*range(1, 71), 127, 128, 200]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("out_features", "in_features"), [(96, 64), (37, 75), (1, 8), (200, 1), (130, 333)])
@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_is_near_the_exact_product(
    backend: Backend, dtype: torch.dtype, assert_near: Callable[[Tensor, Tensor], None],
    out_features: int, in_features: int, canonical: bool, with_bias: bool,
) -> None:  # fmt: skip
    weight = random(out_features, in_features, dtype=dtype)
    bias = random(out_features, dtype=dtype, seed=2) if with_bias else None
    packed = backend.pack(weight, bias)
    interpreted = backend.recipe.variant == "interpreter"
    for rows in (1, 13) if interpreted else (1, 2, 3, 5, 8, 13, 33, 70):
        x = random(rows, in_features, dtype=dtype, seed=rows)
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        y = backend.linear(x, packed, canonical=canonical)
        assert y.dtype == dtype
        assert_near(y, exact)
        logits = backend.logits(x, packed, canonical=canonical)
        assert logits.dtype == torch.float32
        if backend.recipe.path == "triton":  # without split-K the library sums and rounds in its own way
            assert_near(logits.to(dtype), exact)
        else:
            assert torch.equal(logits.to(dtype), y)


def test_linear_of_no_rows_is_empty(backend: Backend, dtype: torch.dtype) -> None:
    packed = backend.pack(random(24, 16, dtype=dtype))
    for canonical in (False, True):
        assert backend.linear(torch.empty(0, 16, dtype=dtype), packed, canonical=canonical).shape == (0, 24)


def test_linear_reads_strided_rows(backend: Backend, dtype: torch.dtype) -> None:
    packed = backend.pack(random(40, 64, dtype=dtype))
    wide = random(9, 100, dtype=dtype, seed=3)
    view = wide[:, 20:84]
    assert torch.equal(
        backend.linear(view, packed, canonical=True),
        backend.linear(view.contiguous(), packed, canonical=True),
    )


def test_pack_copies_the_weight(c_backend: Backend, dtype: torch.dtype) -> None:
    weight = random(32, 32, dtype=dtype)
    packed = c_backend.pack(weight)
    before = c_backend.linear(random(4, 32, dtype=dtype), packed, canonical=True)
    weight.zero_()
    assert torch.equal(c_backend.linear(random(4, 32, dtype=dtype), packed, canonical=True), before)


@pytest.mark.parametrize(("out_features", "in_features"), [(150, 576), (64, 1536), (37, 75)])
def test_c_bits_do_not_depend_on_the_batch(
    c_backend: Backend, c_backend_one_thread: Backend, dtype: torch.dtype, out_features: int, in_features: int
) -> None:
    packed = c_backend.pack(
        random(out_features, in_features, dtype=dtype), random(out_features, dtype=dtype, seed=5)
    )
    x = random(200, in_features, dtype=dtype, seed=1)
    alone = torch.cat([c_backend.logits(x[i : i + 1], packed, canonical=False) for i in range(200)])
    for rows in NUM_ROWS:
        for start in {0, 200 - rows, (200 - rows) // 2}:
            part = x[start : start + rows]
            assert torch.equal(c_backend.logits(part, packed, canonical=False), alone[start : start + rows])
            assert torch.equal(
                c_backend_one_thread.logits(part, packed, canonical=True), alone[start : start + rows]
            )


def test_c_bits_do_not_depend_on_other_rows(c_backend: Backend, dtype: torch.dtype) -> None:
    packed = c_backend.pack(random(150, 320, dtype=dtype))
    row = random(1, 320, dtype=dtype, seed=4)
    alone = c_backend.linear(row, packed, canonical=True)
    for neighbour in (0.0, 1e-7, 6e4, float("inf"), float("nan")):
        for rows, index in ((2, 1), (8, 0), (31, 17), (64, 63)):
            x = torch.full((rows, 320), neighbour, dtype=dtype)
            x[index] = row[0]
            assert torch.equal(c_backend.linear(x, packed, canonical=True)[index], alone[0])


@pytest.mark.usefixtures("shape_dependent_gemm")
def test_torch_canonical_bits_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.torch.backend import TorchBackend

    backend = TorchBackend(dtype)
    packed = backend.pack(random(96, 200, dtype=dtype))
    x = random(70, 200, dtype=dtype, seed=1)
    alone = torch.cat([backend.linear(x[i : i + 1], packed, canonical=True) for i in range(70)])
    for rows in (1, 2, 7, 15, 16, 17, 33, 70):
        assert torch.equal(backend.linear(x[:rows], packed, canonical=True), alone[:rows])
        assert torch.equal(backend.linear(x[70 - rows :], packed, canonical=True), alone[70 - rows :])
    fast = [backend.logits(x[:rows], packed, canonical=False)[0] for rows in (1, 70)]
    assert dtype is not torch.float32 or not torch.equal(*fast)  # a fast pass does depend on it


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    backend = open_backend(torch.bfloat16, kernels="c", num_threads=1)
    identity = backend.pack(torch.eye(8))
    x = torch.tensor([[1.0, -0.0, float("inf"), -3.5, 1e-30, 3e38, 257.0, 2.0]], dtype=torch.bfloat16)
    values = x.clone()
    values[0, 2] = 5.0  # an infinity times the zeros beside the diagonal is NaN
    assert torch.equal(backend.linear(values, identity, canonical=True), values + 0.0)
    assert backend.linear(x, identity, canonical=True).isnan().sum() == 7
    sums = backend.pack(torch.tensor([[1.0, 1.0]]))
    halfway = torch.tensor([[256.0, 1.0], [258.0, 1.0]], dtype=torch.bfloat16)
    assert backend.linear(halfway, sums, canonical=True).flatten().tolist() == [256.0, 260.0]
