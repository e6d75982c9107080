"""Kernels of the Triton backend: near fp64, partial sums added in order, and a row's bits
independent of other rows."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.layer import LayerShape
from holdfast.numerics.ops import Backend

SHAPE = LayerShape(heads=5, kv_heads=2, head_dim=12, eps=1e-5, scale=1.0)
Near = Callable[[Tensor, Tensor], None]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Every sum of products of these is exact in fp32, in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def device(triton_backend: Backend) -> torch.device:
    """Where the kernels run. Opening the backend comes first."""
    return triton_backend.device


def in_order(partial: Tensor, bias: Tensor | None) -> Tensor:
    """Partial sums fp32 [S, rows, N], added in the order of the recipe."""
    total = partial[0].clone()
    for split in partial[1:]:
        total += split
    return total if bias is None else total + bias


@pytest.fixture
def split_backend(device: torch.device, dtype: torch.dtype) -> Backend:
    """Splits GEMMs of 96 x 64 after 72 columns in passes of 40 rows, unless they are split along K."""
    split_n = {(96, 64): {40: 72}}
    return open_backend(dtype, kernels="triton", num_threads=1, device=device, split_n=split_n)


def test_split_n_applies_to_its_number_of_rows_only(
    split_backend: Backend, device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.numerics.backends.triton.gemms import gemm

    weight, x = integers(96, 64, dtype=dtype).to(device), integers(41, 64, dtype=dtype, seed=1).to(device)
    multiply_split_n, seen = gemm._multiply_split_n, []

    def spy(x: Tensor, weight: Tensor, num_first: int) -> Tensor:
        seen.append((len(x), num_first))
        return multiply_split_n(x, weight, num_first)

    monkeypatch.setattr(gemm, "_multiply_split_n", spy)
    packed = split_backend.pack(weight)
    found = split_backend.linear(x[:40], packed, canonical=False)
    assert seen == [(40, 72)]
    exact = x[:40].double() @ weight.double().T
    assert found.is_contiguous() and torch.equal(found, exact.to(dtype))
    split_backend.linear(x[:40], packed, canonical=True)
    split_backend.linear(x, packed, canonical=False)
    split_backend.linear(x[:40], replace(packed, split_k=2), canonical=False)
    split_backend.linear(x[:40], split_backend.pack(weight[:80].contiguous()), canonical=False)
    gemm.multiply(x[:40], packed, vendor_gemm=True)
    assert seen == [(40, 72)]


def test_split_n_is_dropped_for_split_k_and_bias(
    split_backend: Backend, device: torch.device, dtype: torch.dtype
) -> None:
    weight, bias = random(96, 64, dtype=dtype).to(device), random(96).to(device)
    assert split_backend.pack(weight).split_n == {40: 72}
    assert split_backend.pack(weight, bias).split_n == {}
    with_split_k = open_backend(
        dtype,
        kernels="triton",
        num_threads=1,
        device=device,
        split_k={(96, 64): 2},
        split_n={(96, 64): {40: 72}},
    )
    assert with_split_k.pack(weight).split_n == {}


@pytest.mark.parametrize(("split_k", "with_bias"), [(1, True), (2, False), (4, True)])
def test_partial_sums_are_added_in_order_and_rounded_once(
    device: torch.device, dtype: torch.dtype, split_k: int, with_bias: bool
) -> None:
    from holdfast.numerics.backends.triton.gemms.partial_sums import reduce

    partial = random(split_k, 9, 1030).to(device)
    bias = random(1030, seed=1).to(device) if with_bias else None
    expected = in_order(partial, bias)
    assert torch.equal(reduce(partial, bias, dtype), expected.to(dtype))
    assert torch.equal(
        reduce(partial[:, :3], bias, torch.float32), expected[:3]
    )  # splits farther apart than their rows
    finished = partial[0].to(dtype)
    assert torch.equal(
        reduce(finished, bias, dtype), finished if bias is None else (finished.float() + bias).to(dtype)
    )


@pytest.mark.parametrize("split_k", [1, 3])
def test_add_rms_norm_of_partial_sums(
    device: torch.device, dtype: torch.dtype, split_k: int, assert_near: Near
) -> None:
    from holdfast.numerics.backends.triton.norm import add_rms_norm, rms_norm

    partial, bias = random(split_k, 6, 130).to(device), random(130, seed=1).to(device)
    residual, weight = (
        random(6, 130, dtype=dtype, seed=2).to(device),
        random(130, dtype=dtype, seed=3).to(device),
    )
    summed = residual + in_order(partial, bias).to(dtype)
    alone = [residual[i : i + 1].clone() for i in range(6)]
    out = add_rms_norm(residual, partial, bias, weight, 1e-5)
    wide = summed.double()
    assert torch.equal(residual, summed)
    assert torch.equal(out, rms_norm(summed, weight, 1e-5))
    assert_near(out, wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double())
    for i in (0, 5):
        one = add_rms_norm(alone[i], partial[:, i : i + 1], bias, weight, 1e-5)
        assert torch.equal(one[0], out[i]) and torch.equal(alone[i][0], residual[i])


def test_rowwise_kernels_ignore_other_rows(device: torch.device, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton.elementwise import silu_mul
    from holdfast.numerics.backends.triton.norm import rms_norm

    row, weight = random(1, 194, dtype=dtype).to(device), random(194, dtype=dtype, seed=1).to(device)
    normed, active = rms_norm(row, weight, 1e-6), silu_mul(row, None, dtype)
    for neighbour in (0.0, 6e4, float("inf"), float("nan")):
        x = torch.full((5, 194), neighbour, dtype=dtype, device=device)
        x[3] = row[0]
        assert torch.equal(rms_norm(x, weight, 1e-6)[3], normed[0])
        assert torch.equal(silu_mul(x, None, dtype)[3], active[0])


def test_silu_mul_of_partial_sums(device: torch.device, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton.elementwise import silu_mul

    partial, bias = random(2, 3, 100).to(device), random(100, seed=1).to(device)
    finished = in_order(partial, bias).to(dtype)
    assert torch.equal(silu_mul(partial, bias, dtype), silu_mul(finished, None, dtype))


def test_silu_mul_of_several_blocks(device: torch.device, dtype: torch.dtype, assert_near: Near) -> None:
    from holdfast.numerics.backends.triton.elementwise import _SILU_BLOCK, silu_mul

    inner = 2 * _SILU_BLOCK + 5
    x = random(2, 2 * inner, dtype=dtype).to(device)
    gate, up = x.double().chunk(2, 1)
    assert_near(silu_mul(x, None, dtype), gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("split_k", [0, 2])
def test_rope_store_equals_its_steps(
    triton_backend: Backend, device: torch.device, dtype: torch.dtype, normed: bool, split_k: int
) -> None:
    """One kernel or step by step; keys in either layout; nothing is written for slot -1."""
    from holdfast.numerics.backends.triton import rope_store
    from holdfast.numerics.backends.triton.gemms import partial_sums
    from holdfast.numerics.backends.triton.norm import rms_norm

    rows, width = 5, SHAPE.head_dim
    data = random(max(split_k, 1), rows, 9 * width).to(device)
    data, bias = (data if split_k else data[0].to(dtype)), random(9 * width, seed=1).to(device)
    norms = tuple(random(width, dtype=dtype, seed=s).to(device) for s in (2, 3)) if normed else None
    angles = torch.rand(rows, width // 2, generator=torch.Generator().manual_seed(4)) * 6
    cos, sin = angles.cos().to(device), angles.sin().to(device)
    slots = torch.tensor([70, -1, 0, 127, 64], device=device)

    def layers() -> tuple[KVLayer, KVLayer]:
        stored = torch.zeros(2, 2, 2, 64, width, dtype=dtype, device=device)
        return KVLayer(stored[0].transpose(2, 3), stored[1]), KVLayer(
            torch.zeros(2, 2, width, 64, dtype=dtype, device=device), torch.zeros_like(stored[1])
        )

    results = []
    for layer in layers():
        q = rope_store.rope_store(data, bias, norms, SHAPE, cos, sin, layer, slots)
        results.append((q, layer.keys, layer.values))
    fused = partial_sums.reduce(data, bias, dtype).view(rows, 9, width)
    q, k, v = fused[:, :5].contiguous(), fused[:, 5:7].contiguous(), fused[:, 7:]
    if norms is not None:
        q, k = rms_norm(q, norms[0], SHAPE.eps), rms_norm(k, norms[1], SHAPE.eps)
    rope_store.rope(q, k, cos, sin)
    layer = layers()[0]
    rope_store.store(k, v, layer, slots)
    for result in results:
        assert all(torch.equal(a, b) for a, b in zip(result, (q, layer.keys, layer.values), strict=True))
    assert torch.equal(layer.keys[1, :, :, 6], k[0]) and torch.equal(layer.values[1, :, 63], v[3])
    assert (layer.values != 0).any(3).any(1).sum() == 4


def test_embed_reads_a_negative_id_as_row_0(backend: Backend, dtype: torch.dtype) -> None:
    table = random(9, 40, dtype=dtype)
    assert torch.equal(backend.embed(table, torch.tensor([3, -1, 8])), table[[3, 0, 8]])


def test_new_kv_layer_is_zeros(backend: Backend, dtype: torch.dtype) -> None:
    layer, size = backend.new_kv_layer(3, 2, 24), backend.page_size
    assert layer.keys.shape == (3, 2, 24, size) and layer.values.shape == (3, 2, size, 24)
    assert layer.keys.dtype is layer.values.dtype is dtype
    assert not layer.keys.any() and not layer.values.any()


def test_recipe_lists_split_k_per_shape(open_any: Callable[..., Backend], triton_kernels: str) -> None:
    triton = open_any(triton_kernels, torch.float32, {(64, 32): 2, (8, 32): 0})
    assert triton.recipe.path == "triton" and triton.recipe.rows == 256
    assert triton.recipe.products == "8x32/0 64x32/2"
    assert triton.pack(random(64, 32)).split_k == 2
    assert triton.pack(random(8, 32)).split_k == 0
    assert triton.pack(random(8, 32), random(8)).split_k == 1  # a bias is added before rounding
    x, packed = random(5, 32), triton.pack(integers(64, 32, dtype=torch.float32))
    assert torch.equal(triton.linear(x, packed, canonical=True), triton.logits(x, packed, canonical=True))
