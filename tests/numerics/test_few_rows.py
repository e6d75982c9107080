"""Products of few rows by kernels of our own, against fp64; on a GPU their bits against the library's."""

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")

HAS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if HAS_CUDA else "cpu"
DTYPES = [torch.float16, torch.bfloat16] if HAS_CUDA else [torch.float16]  # the interpreter knows no bf16
OUTPUTS, WIDTH = 3072, 256

pytestmark = [pytest.mark.gpu] if HAS_CUDA else []


def _random(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, WIDTH, generator=generator)
    weight = torch.randn(OUTPUTS, WIDTH, generator=generator) * 0.1
    return x.to(dtype).to(DEVICE), weight.to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("slices", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 5, 32])
def test_products_of_few_rows(rows: int, slices: int, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton import small_m_gemm as few_rows

    x, weight = _random(rows, dtype)
    assert few_rows.takes(rows, weight, slices)
    found = few_rows.multiply_few(x, weight, slices)
    expected = x.double() @ weight.double().T
    total = found.double() if slices == 0 else found.double().sum(0)
    assert found.dtype is (torch.float32 if slices else dtype)
    assert ((total - expected).norm() / expected.norm()).item() < (4e-3 if slices == 0 else 1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 17])
def test_gate_and_up_in_one_go_have_the_bits_of_one_by_one(rows: int, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton import small_m_gemm as few_rows
    from holdfast.numerics.backends.triton.activation import silu_mul

    x, weight = _random(rows, dtype)
    apart = silu_mul(few_rows.multiply_few(x, weight, 0), None, dtype)
    assert torch.equal(few_rows.gate_up_few(x, weight), apart)


def test_a_row_does_not_feel_its_neighbours() -> None:
    from holdfast.numerics.backends.triton import small_m_gemm as few_rows

    x, weight = _random(32, torch.float16)
    together = few_rows.multiply_few(x, weight, 2)
    for row in (0, 13, 31):
        assert torch.equal(
            few_rows.multiply_few(x[row : row + 1].contiguous(), weight, 2)[:, 0], together[:, row]
        )


@pytest.mark.skipif(not HAS_CUDA, reason="the library's tensor cores are to be met")
@pytest.mark.parametrize("shape", [(6144, 4096, 0), (4096, 4096, 2), (4096, 14336, 2), (3072, 1024, 0)])
def test_the_bits_are_the_librarys(shape: tuple[int, int, int]) -> None:
    from holdfast.numerics.backends.triton import few_rows, linear
    from holdfast.numerics.ops import Linear

    outputs, width, slices = shape
    weight = torch.randn(outputs, width, device="cuda").mul(0.02).to(torch.bfloat16)
    packed = Linear(weight, None, width, outputs, torch.bfloat16, slices)
    for rows in (*range(1, 33),):
        x = torch.randn(rows, width, device="cuda").to(torch.bfloat16)
        x[:, ::2] *= 300
        reference = linear.multiply(x, packed, slab=256)
        assert torch.equal(few_rows.multiply_few(x, weight, slices), reference)
