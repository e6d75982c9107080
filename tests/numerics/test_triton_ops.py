"""Triton's path: products in one piece or two, and the kernels behind them: near fp64, parts added in order, and the same
bits among any neighbours."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.layer import LayerShape
from holdfast.numerics.ops import Backend
from holdfast.numerics.select_backend import open_backend

SHAPE = LayerShape(heads=5, kv_heads=2, head_dim=12, eps=1e-5, scale=1.0)
Near = Callable[[Tensor, Tensor], None]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def device(triton_ops: Backend) -> torch.device:
    """That the kernels run on, wherever the tests' own tensors are; opening the path comes first."""
    return triton_ops.device


def in_order(parts: Tensor, bias: Tensor | None) -> Tensor:
    """parts fp32 [S, rows, N], as they are to be added."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total if bias is None else total + bias


@pytest.fixture
def cut(device: torch.device, dtype: torch.dtype) -> Backend:
    """Products of 96 x 64 are cut behind 72 columns in passes of 40 rows, unless K is."""
    cuts = {(96, 64): {40: 72}}
    return open_backend(dtype, kernels="triton", num_threads=1, device=device, split_n=cuts)


def test_columns_are_cut_at_their_total_and_nowhere_else(
    cut: Backend, device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.numerics.backends.triton import gemm as linear

    weight, x = random(96, 64, dtype=dtype).to(device), random(41, 64, dtype=dtype, seed=1).to(device)
    in_two, seen = linear._in_two, []

    def spy(x: Tensor, weight: Tensor, first: int) -> Tensor:
        seen.append((len(x), first))
        return in_two(x, weight, first)

    monkeypatch.setattr(linear, "_in_two", spy)
    packed = cut.pack(weight)
    found = cut.linear(x[:40], packed, canonical=False)
    assert seen == [(40, 72)]
    expected = [x[:40] @ some.T for some in (weight[:72], weight[72:])]
    assert found.is_contiguous() and torch.equal(found, torch.cat(expected, 1))
    cut.linear(x[:40], packed, canonical=True)  # the reference is in one piece
    cut.linear(x, packed, canonical=False)
    cut.linear(x[:40], replace(packed, split_k=2), canonical=False)
    cut.linear(x[:40], cut.pack(weight[:80].contiguous()), canonical=False)
    linear.multiply(x[:40], packed, vendor_gemm=True)
    assert seen == [(40, 72)]


def test_what_is_summed_in_fp32_is_not_cut(cut: Backend, device: torch.device, dtype: torch.dtype) -> None:
    weight, bias = random(96, 64, dtype=dtype).to(device), random(96).to(device)
    assert cut.pack(weight).split_n == {40: 72}
    assert cut.pack(weight, bias).split_n == {}
    shape = {(96, 64): 2}
    sliced = open_backend(
        dtype, kernels="triton", num_threads=1, device=device, split_k=shape, split_n={(96, 64): {40: 72}}
    )
    assert sliced.pack(weight).split_n == {}


@pytest.mark.parametrize(("slices", "with_bias"), [(1, True), (2, False), (4, True)])
def test_parts_are_added_in_order_and_rounded_once(
    device: torch.device, dtype: torch.dtype, slices: int, with_bias: bool
) -> None:
    from holdfast.numerics.backends.triton.partial_sums import finish

    parts = random(slices, 9, 1030).to(device)
    bias = random(1030, seed=1).to(device) if with_bias else None
    expected = in_order(parts, bias)
    assert torch.equal(finish(parts, bias, dtype), expected.to(dtype))
    assert torch.equal(
        finish(parts[:, :3], bias, torch.float32), expected[:3]
    )  # slices farther apart than rows
    finished = parts[0].to(dtype)
    assert torch.equal(
        finish(finished, bias, dtype), finished if bias is None else (finished.float() + bias).to(dtype)
    )


@pytest.mark.parametrize("slices", [1, 3])
def test_add_rms_norm_of_parts(
    device: torch.device, dtype: torch.dtype, slices: int, assert_near: Near
) -> None:
    from holdfast.numerics.backends.triton.norm import add_rms_norm, rms_norm

    parts, bias = random(slices, 6, 130).to(device), random(130, seed=1).to(device)
    residual, weight = (
        random(6, 130, dtype=dtype, seed=2).to(device),
        random(130, dtype=dtype, seed=3).to(device),
    )
    summed = residual + in_order(parts, bias).to(dtype)
    alone = [residual[i : i + 1].clone() for i in range(6)]
    out = add_rms_norm(residual, parts, bias, weight, 1e-5)
    wide = summed.double()
    assert torch.equal(residual, summed)
    assert torch.equal(out, rms_norm(summed, weight, 1e-5))
    assert_near(out, wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double())
    for i in (0, 5):
        one = add_rms_norm(alone[i], parts[:, i : i + 1], bias, weight, 1e-5)
        assert torch.equal(one[0], out[i]) and torch.equal(alone[i][0], residual[i])


def test_neighbours_cannot_be_felt(device: torch.device, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton.activation import silu_mul
    from holdfast.numerics.backends.triton.norm import rms_norm

    row, weight = random(1, 194, dtype=dtype).to(device), random(194, dtype=dtype, seed=1).to(device)
    normed, active = rms_norm(row, weight, 1e-6), silu_mul(row, None, dtype)
    for neighbour in (0.0, 6e4, float("inf"), float("nan")):
        x = torch.full((5, 194), neighbour, dtype=dtype, device=device)
        x[3] = row[0]
        assert torch.equal(rms_norm(x, weight, 1e-6)[3], normed[0])
        assert torch.equal(silu_mul(x, None, dtype)[3], active[0])


def test_silu_mul_of_parts(device: torch.device, dtype: torch.dtype) -> None:
    from holdfast.numerics.backends.triton.activation import silu_mul

    parts, bias = random(2, 3, 100).to(device), random(100, seed=1).to(device)
    finished = in_order(parts, bias).to(dtype)
    assert torch.equal(silu_mul(parts, bias, dtype), silu_mul(finished, None, dtype))


def test_silu_mul_of_several_blocks(device: torch.device, dtype: torch.dtype, assert_near: Near) -> None:
    from holdfast.numerics.backends.triton.activation import _BLOCK, silu_mul

    inner = 2 * _BLOCK + 5
    x = random(2, 2 * inner, dtype=dtype).to(device)
    gate, up = x.double().chunk(2, 1)
    assert_near(silu_mul(x, None, dtype), gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("slices", [0, 2])
def test_rope_store_is_its_steps(
    triton_ops: Backend, device: torch.device, dtype: torch.dtype, normed: bool, slices: int
) -> None:
    """Summed, normed, rotated and stored in one kernel and one by one; keys in either layout; nothing where no slot is."""
    from holdfast.numerics.backends.triton import partial_sums as products
    from holdfast.numerics.backends.triton import rope_store
    from holdfast.numerics.backends.triton.norm import rms_norm

    rows, width = 5, SHAPE.head_dim
    data = random(max(slices, 1), rows, 9 * width).to(device)
    data, bias = (data if slices else data[0].to(dtype)), random(9 * width, seed=1).to(device)
    norms = tuple(random(width, dtype=dtype, seed=s).to(device) for s in (2, 3)) if normed else None
    angles = torch.rand(rows, width // 2, generator=torch.Generator().manual_seed(4)) * 6
    cos, sin = angles.cos().to(device), angles.sin().to(device)
    slots = torch.tensor([70, -1, 0, 127, 64], device=device)

    def layers() -> tuple[KVLayer, KVLayer]:
        lying = torch.zeros(2, 2, 2, 64, width, dtype=dtype, device=device)
        return KVLayer(lying[0].transpose(2, 3), lying[1]), KVLayer(
            torch.zeros(2, 2, width, 64, dtype=dtype, device=device), torch.zeros_like(lying[1])
        )

    results = []
    for layer in layers():
        q = rope_store.rope_store(data, bias, norms, SHAPE, cos, sin, layer, slots)
        results.append((q, layer.keys, layer.values))
    fused = products.finish(data, bias, dtype).view(rows, 9, width)
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


def test_embed_reads_no_id_as_the_first(backend: Backend, dtype: torch.dtype) -> None:
    table = random(9, 40, dtype=dtype)
    assert torch.equal(backend.embed(table, torch.tensor([3, -1, 8])), table[[3, 0, 8]])


def test_a_new_layer_is_zeros_in_its_own_pages(backend: Backend, dtype: torch.dtype) -> None:
    layer, size = backend.new_kv_layer(3, 2, 24), backend.page_size
    assert layer.keys.shape == (3, 2, 24, size) and layer.values.shape == (3, 2, size, 24)
    assert layer.keys.dtype is layer.values.dtype is dtype
    assert not layer.keys.any() and not layer.values.any()


def test_the_recipe_says_how_products_are_cut(open_path: Callable[..., Backend], triton_path: str) -> None:
    ops = open_path(triton_path, torch.float32, {(64, 32): 2, (8, 32): 0})
    assert ops.recipe.path == "triton" and ops.recipe.rows == 256
    assert ops.recipe.products == "8x32/0 64x32/2"
    assert ops.pack(random(64, 32)).split_k == 2
    assert ops.pack(random(8, 32)).split_k == 0
    assert ops.pack(random(8, 32), random(8)).split_k == 1  # a bias is added before rounding
    x = random(5, 32)
    assert torch.equal(
        ops.linear(x, ops.pack(random(64, 32)), canonical=True),
        ops.logits(x, ops.pack(random(64, 32)), canonical=True),
    )
