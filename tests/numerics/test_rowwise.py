"""Norm, residual, rope, activation and KV store: near a reference, and the same bits in any batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.ops import Backend


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("shape", [(5, 576), (3, 8192), (1, 7), (40, 3, 64), (3, 2, 20)])
def test_rms_norm(
    backend: Backend,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    assert_near: Callable[[Tensor, Tensor], None],
) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    out = backend.rms_norm(x, weight, 1e-5)
    assert out.shape == x.shape
    assert_near(out, norm_reference(x, weight, 1e-5))
    interpreted = backend.recipe.variant == "interpreter"
    for i in {0, shape[0] - 1} if interpreted else range(shape[0]):
        assert torch.equal(backend.rms_norm(x[i : i + 1], weight, 1e-5)[0], out[i])


def test_rms_norm_reads_views(backend: Backend, dtype: torch.dtype) -> None:
    fused, weight = random(6, 200, dtype=dtype), random(16, dtype=dtype, seed=1)
    heads = fused[:, 32:96].view(6, 4, 16)
    assert torch.equal(
        backend.rms_norm(heads, weight, 1e-6), backend.rms_norm(heads.contiguous(), weight, 1e-6)
    )


def test_add_rms_norm_is_add_then_norm(backend: Backend, dtype: torch.dtype) -> None:
    for rows, width in ((1, 576), (3, 8192), (64, 576)):
        residual, delta = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype, seed=1)
        weight = random(width, dtype=dtype, seed=2)
        summed = residual + delta
        out = backend.add_rms_norm(residual, delta, weight, 1e-5)
        assert torch.equal(residual, summed)
        assert torch.equal(out, backend.rms_norm(summed, weight, 1e-5))


def test_norms_with_fp32_weights_round_once(
    backend: Backend, dtype: torch.dtype, assert_near: Callable[[Tensor, Tensor], None]
) -> None:
    x, weight = random(5, 70, dtype=dtype) + 3, random(70, dtype=torch.float32, seed=1)
    wide = x.double()
    for centered, inputs in ((False, wide), (True, wide - wide.mean(-1, keepdim=True))):
        out = backend.rms_norm(x, weight, 1e-5, centered=centered)
        exact = norm_reference(inputs, weight, 1e-5)
        assert_near(out, exact)
        if dtype is not torch.float32:
            assert (out == exact.to(dtype)).float().mean() > 0.98
        assert torch.equal(backend.rms_norm(x[3:4], weight, 1e-5, centered=centered)[0], out[3])


def test_add_rms_norm_norms_and_scales_what_it_adds(
    backend: Backend, dtype: torch.dtype, assert_near: Callable[[Tensor, Tensor], None]
) -> None:
    start, delta = random(3, 70, dtype=dtype), random(3, 70, dtype=dtype, seed=1)
    weight, delta_norm = (random(70, dtype=torch.float32, seed=seed) for seed in (2, 3))
    for centered in (False, True):
        normed = backend.rms_norm(delta, delta_norm, 1e-5, centered=centered)
        summed = start + (normed.float() * 0.22).to(dtype)
        for norm in (weight, None):
            residual = start.clone()
            out = backend.add_rms_norm(
                residual, delta, norm, 1e-5, delta_norm=delta_norm, delta_scale=0.22, centered=centered
            )
            assert_near(residual, summed.double())  # a GPU may round product and sum at once
            expected = residual if norm is None else backend.rms_norm(residual, norm, 1e-5, centered=centered)
            assert torch.equal(out, expected)


@pytest.mark.parametrize("width", [64, 128, 8, 80])
def test_rope_rotates_views_in_place(
    backend: Backend, dtype: torch.dtype, width: int, assert_near: Callable[[Tensor, Tensor], None]
) -> None:
    rows, heads, kv_heads = 37, 4, 2
    fused = random(rows, (heads + 2 * kv_heads) * width, dtype=dtype)
    before = fused.clone()
    q = fused[:, : heads * width].view(rows, heads, width)
    k = fused[:, heads * width : (heads + kv_heads) * width].view(rows, kv_heads, width)
    angles = torch.rand(rows, width // 2, generator=torch.Generator().manual_seed(3)) * 6
    backend.rope(q, k, angles.cos(), angles.sin())
    cos, sin = (f(torch.cat((angles, angles), -1).double())[:, None] for f in (torch.cos, torch.sin))
    turned = before[:, : (heads + kv_heads) * width].double().view(rows, heads + kv_heads, width)
    half = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), -1)
    assert_near(fused[:, : (heads + kv_heads) * width].reshape(turned.shape), turned * cos + half * sin)
    assert torch.equal(fused[:, (heads + kv_heads) * width :], before[:, (heads + kv_heads) * width :])
    alone = before[5:6, : heads * width].view(1, heads, width).clone()
    backend.rope(alone, alone.clone(), angles[5:6].cos(), angles[5:6].sin())
    assert torch.equal(alone[0], q[5])


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


ACTIVATIONS: dict[str, tuple[dict[str, float], Callable[[Tensor, Tensor], Tensor]]] = {
    "silu_mul": ({}, lambda gate, up: torch.nn.functional.silu(gate) * up),
    "gelu_mul": ({}, lambda gate, up: torch.nn.functional.gelu(gate, approximate="tanh") * up),
    "swiglu_mul": ({"alpha": 1.702, "limit": 7.0}, _swiglu),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_near_rowwise_and_finite_far_from_zero(
    backend: Backend, dtype: torch.dtype, name: str, assert_near: Callable[[Tensor, Tensor], None]
) -> None:
    settings, exact = ACTIVATIONS[name]
    gate_up = random(33 if name == "silu_mul" else 5, 2 * 1531, dtype=dtype) * 5
    gate_up[0, :2] = torch.tensor([-1e4, float("nan")])
    out = getattr(backend, name)(gate_up, **settings)
    assert out[0, 1].isnan() and abs(out[0, 0].item()) < 1e-30
    assert_near(out.nan_to_num(), exact(*gate_up.double().chunk(2, -1)).nan_to_num())
    for i in (1, len(gate_up) - 1):
        assert torch.equal(getattr(backend, name)(gate_up[i : i + 1], **settings)[0], out[i])
    if name != "swiglu_mul":  # it limits the gate
        far = torch.tensor([[-1e4, -90.0, -0.0, 0.0, 90.0, 1e4]], dtype=dtype)
        ends = getattr(backend, name)(torch.cat((far, torch.ones_like(far)), -1))[0]
        assert ends[:4].float().abs().max() < 1e-30 and ends[4:].tolist() == far[0, 4:].tolist()


def test_soft_cap_is_near_and_rowwise(backend: Backend, dtype: torch.dtype) -> None:
    logits = random(3, 531, dtype=torch.float32) * 40
    logits[0, :5] = torch.tensor([0.0, 1e-6, -1e30, 1e30, -18.9])
    capped = logits.clone()
    backend.soft_cap(capped, 30.0)
    assert (capped.double() - torch.tanh(logits.double() / 30) * 30).abs().max() < 1e-5
    assert capped[0, 1].item() == pytest.approx(1e-6, rel=1e-6)
    alone = logits[1:2].clone()
    backend.soft_cap(alone, 30.0)
    assert torch.equal(alone[0], capped[1])


def test_store_kv_writes_slots_and_skips_padding(backend: Backend, dtype: torch.dtype) -> None:
    heads, width, page_size = 3, 16, 16
    layer = KVLayer(
        torch.zeros(4, heads, width, page_size, dtype=dtype),
        torch.zeros(4, heads, page_size, width, dtype=dtype),
    )
    fused = random(4, 2 * heads * width, dtype=dtype)
    k = fused[:, : heads * width].view(4, heads, width)
    v = fused[:, heads * width :].view(4, heads, width)
    backend.store_kv(k, v, layer, torch.tensor([5, 63, -1, 16]))
    for row, (page, offset) in {0: (0, 5), 1: (3, 15), 3: (1, 0)}.items():
        assert torch.equal(layer.keys[page, :, :, offset], k[row])
        assert torch.equal(layer.values[page, :, offset], v[row])
    assert (layer.keys != 0).any(2).any(1).sum() == 3


def test_embed_looks_up_rows(backend: Backend, dtype: torch.dtype) -> None:
    table = random(50, 8, dtype=dtype)
    assert torch.equal(backend.embed(table, torch.tensor([3, 3, 49])), table[[3, 3, 49]])
