"""GEMMs: near fp64 for every split-K, batch-invariant in canonical form, and batch-invariant recipes for real models."""

from dataclasses import replace

import pytest
import torch
from gpu_numbers import HAS_GPU, assert_near, random, same_bits, selections

from holdfast.certification.gemm.choose import model_gemm_shapes, search_recipes
from holdfast.certification.gemm.recipes import library_multiply
from holdfast.models.shapes import published_config
from holdfast.numerics.ops import Backend, Linear

SHAPES = [(6144, 4096), (4096, 14336), (960, 576), (1024, 3072)] if HAS_GPU else [(48, 64)]
ROWS = 37 if HAS_GPU else 5
SOME_SIZES = (*range(1, 65), *range(65, 513, 7), 512, 1000, 1024, 2048, 4096)


@pytest.mark.parametrize("split_k", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_gemms_are_near_fp64_for_every_split_k(
    backend: Backend,
    dtype: torch.dtype,
    device: torch.device,
    outputs: int,
    inputs: int,
    split_k: int,
    has_bias: bool,
) -> None:
    if has_bias and not split_k:
        pytest.skip("a bias is added to fp32 sums")
    x = random(ROWS, inputs, dtype=dtype, device=device)
    weight = random(outputs, inputs, dtype=dtype, device=device, seed=1, scale=0.02)
    bias = random(outputs, dtype=dtype, device=device, seed=2) if has_bias else None
    packed = replace(backend.pack(weight, bias), split_k=split_k)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    for canonical in (False, True):
        assert_near(backend.linear(x, packed, canonical=canonical), exact, dtype)
    if split_k:
        found = backend.logits(x, packed, canonical=True)
        assert found.dtype is torch.float32
        assert_near(found, exact, torch.float32 if dtype is torch.float32 else dtype)


def test_pack_does_not_copy_the_weight(backend: Backend, dtype: torch.dtype, device: torch.device) -> None:
    weight = random(64, 64, dtype=dtype, device=device)
    assert backend.pack(weight).data.data_ptr() == weight.data_ptr()


def test_split_n_gives_the_same_bits(backend: Backend, dtype: torch.dtype, device: torch.device) -> None:
    outputs, inputs, first, rows = (28672, 4096, 16128, 256) if HAS_GPU else (96, 64, 64, 40)
    weight = random(outputs, inputs, dtype=dtype, device=device, seed=1, scale=0.02)
    whole = backend.pack(weight)
    split = replace(whole, split_n={rows: first})
    x = random(rows + 1, inputs, dtype=dtype, device=device)
    found = backend.linear(x[:rows], split, canonical=False)
    parts = [x[:rows] @ some.T for some in (weight[:first], weight[first:])]
    assert found.is_contiguous() and same_bits(found, torch.cat(parts, 1))
    if HAS_GPU and dtype is not torch.float32:  # in fp32 the library's bits depend on the batch size
        assert same_bits(found, backend.linear(x[:rows], whole, canonical=True))
    for one in (x, x[:8]):
        other = backend.linear(one, split, canonical=False)
        assert same_bits(other, backend.linear(one, whole, canonical=False))


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("split_k", [0, 2])
def test_canonical_gemm_is_batch_invariant(
    backend: Backend, dtype: torch.dtype, device: torch.device, outputs: int, inputs: int, split_k: int
) -> None:
    x = random(ROWS, inputs, dtype=dtype, device=device)
    packed = replace(
        backend.pack(random(outputs, inputs, dtype=dtype, device=device, seed=1)), split_k=split_k
    )
    whole = backend.linear(x, packed, canonical=True)
    for rows in selections(ROWS):
        assert same_bits(backend.linear(x[rows].contiguous(), packed, canonical=True), whole[rows])
    many = random(backend.recipe.rows + 3, inputs, dtype=dtype, device=device, seed=9)
    many[-1], many[5] = x[0], x[1]
    among = backend.linear(many, packed, canonical=True)
    assert same_bits(among[-1], whole[0])
    assert same_bits(among[5], whole[1])


@pytest.mark.skipif(not HAS_GPU, reason="the bits of tensor cores")
@pytest.mark.parametrize("shape", [(6144, 4096, 0), (4096, 4096, 2), (4096, 14336, 2), (3072, 1024, 0)])
def test_small_m_gemm_has_the_bits_of_the_library(shape: tuple[int, int, int], device: torch.device) -> None:
    from holdfast.numerics.backends.triton.gemms import gemm, small_m_gemm

    outputs, inputs, split_k = shape
    weight = random(outputs, inputs, dtype=torch.bfloat16, device=device, seed=1, scale=0.02)
    packed = Linear(weight, None, inputs, outputs, torch.bfloat16, split_k)
    for num_rows in range(1, 33):
        x = random(num_rows, inputs, dtype=torch.bfloat16, device=device, seed=num_rows)
        x[:, ::2] *= 300
        reference = gemm.multiply(x, packed, slab=256)
        assert same_bits(small_m_gemm.multiply(x, weight, split_k), reference)
        alone = small_m_gemm.multiply(x[-1:].contiguous(), weight, split_k)
        assert same_bits(alone[..., 0, :], reference[..., -1, :])


@pytest.mark.skipif(not HAS_GPU, reason="the bits of tensor cores")
@pytest.mark.parametrize("num_rows", [1, 17])
def test_fused_gate_up_has_the_bits_of_gemm_then_silu(
    dtype: torch.dtype, num_rows: int, device: torch.device
) -> None:
    from holdfast.numerics.backends.triton.elementwise import silu_mul
    from holdfast.numerics.backends.triton.gemms import small_m_gemm

    if dtype is torch.float32:
        pytest.skip("the kernel is for 16-bit weights")
    x = random(num_rows, 256, dtype=dtype, device=device)
    weight = random(3072, 256, dtype=dtype, device=device, seed=1, scale=0.1)
    apart = silu_mul(small_m_gemm.multiply(x, weight, 0), None, dtype)
    assert same_bits(small_m_gemm.gate_up(x, weight), apart)


@pytest.mark.skipif(not HAS_GPU, reason="needs the GPU's library")
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-0.6b", "qwen2.5-1.5b", "smollm2-135m"])
def test_every_gemm_of_a_model_has_a_batch_invariant_recipe(model: str, device: torch.device) -> None:
    recipes = search_recipes(
        model_gemm_shapes(published_config(model)),
        library_multiply,
        dtype=torch.bfloat16,
        device=device,
        subject={"for": "a test", "some": len(SOME_SIZES)},
        sizes=SOME_SIZES,
    )
    assert all(one.agrees for one in recipes), [(one.name, one.split_k) for one in recipes if not one.agrees]
