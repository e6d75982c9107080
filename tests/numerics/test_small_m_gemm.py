"""The small-M GEMM kernels: near fp64, and equal to other ways of computing the same outputs where
every sum is exact.

Their bits for inexact sums are a property of the GPU; `tests/gpu/test_gemm_on_gpu.py` compares them
there.
"""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

HAS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if HAS_CUDA else "cpu"
DTYPES = [torch.float16, torch.bfloat16] if HAS_CUDA else [torch.float16]  # the interpreter has no bf16
OUT_FEATURES, IN_FEATURES = 256, 256

pytestmark = [pytest.mark.usefixtures("interpreter"), *([pytest.mark.gpu] if HAS_CUDA else [])]


def _random(num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, IN_FEATURES, generator=generator)
    weight = torch.randn(OUT_FEATURES, IN_FEATURES, generator=generator) * 0.1
    return x.to(dtype).to(DEVICE), weight.to(dtype).to(DEVICE)


def _exact(num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Small multiples of 1/16: each sum of products is exact in fp32, in every order."""
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randint(-8, 9, (num_rows, IN_FEATURES), generator=generator) / 4
    weight = torch.randint(-8, 9, (OUT_FEATURES, IN_FEATURES), generator=generator) / 16
    return x.to(dtype).to(DEVICE), weight.to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("split_k", [0, 1, 2])
@pytest.mark.parametrize("num_rows", [1, 5, 32])
def test_gemm_is_near_fp64(num_rows: int, split_k: int, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton.gemms import small_m_gemm

    x, weight = _random(num_rows, dtype)
    found = small_m_gemm.multiply(x, weight, split_k)
    expected = x.double() @ weight.double().T
    total = found.double() if split_k == 0 else found.double().sum(0)
    assert found.dtype is (torch.float32 if split_k else dtype)
    assert ((total - expected).norm() / expected.norm()).item() < (4e-3 if split_k == 0 else 1e-5)


@pytest.mark.parametrize(
    ("shape", "num_rows", "split_k", "dtype", "supported"),
    [
        ((3072, 256), 32, 0, torch.float16, True),
        ((1536, 256), 32, 2, torch.bfloat16, True),
        ((3072, 256), 33, 0, torch.float16, False),  # too many rows
        ((3008, 256), 1, 0, torch.float16, False),  # too few programs
        ((3104, 256), 1, 0, torch.float16, False),  # not whole blocks of outputs
        ((3072, 288), 1, 0, torch.float16, False),  # not whole blocks of K
        ((3072, 256), 1, 0, torch.float32, False),  # not a 16-bit dtype
    ],
)
def test_supported_shapes(
    shape: tuple[int, int], num_rows: int, split_k: int, dtype: torch.dtype, supported: bool
) -> None:
    from holdfast.numerics.backends.triton.gemms import small_m_gemm

    weight = torch.empty(shape, dtype=dtype, device="meta")
    assert small_m_gemm.supports(num_rows, weight, split_k) is supported


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 17])
def test_fused_gate_up_equals_gemm_then_silu(num_rows: int, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton.elementwise import silu_mul
    from holdfast.numerics.backends.triton.gemms import small_m_gemm

    x, weight = _exact(num_rows, dtype)
    apart = silu_mul(small_m_gemm.multiply(x, weight, 0), None, dtype)
    assert torch.equal(small_m_gemm.gate_up(x, weight), apart)
    assert torch.equal(apart, silu_mul((x.double() @ weight.double().T).to(dtype), None, dtype))
