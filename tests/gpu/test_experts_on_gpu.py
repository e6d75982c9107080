"""Experts on a GPU: every form has the bits of the canonical one, whatever the other tokens choose."""

import pytest
import torch
from torch import Tensor

from engines import HAS_GPU
from holdfast.numerics.experts import Experts
from holdfast.numerics.layer import LayerShape
from holdfast.numerics.ops import Backend

SIZES = (128, 8, 512, 256) if HAS_GPU else (8, 2, 64, 32)  # experts, top k, hidden, inner
COUNTS = (*range(1, 70), 127, 128, 129, 255, 256, 257, 640, 1025) if HAS_GPU else (1, 3, 17, 40)
SHAPE = LayerShape(heads=1, kv_heads=1, head_dim=64, eps=1e-5, scale=1.0)


def _random(*shape: int, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device)


@pytest.fixture
def layer(backend: Backend, dtype: torch.dtype, device: torch.device) -> Experts:
    num_experts, top_k, hidden, inner = SIZES

    def weights(rows: int, width: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        return [
            (
                (_random(rows, width, seed=seed + number, device=device) * 0.1).to(dtype),
                _random(rows, seed=9 + number, device=device),
            )
            for number in range(num_experts)
        ]

    return Experts(
        router=backend.pack(_random(num_experts, hidden, seed=1, device=device).to(dtype)),
        gate_up=backend.pack_experts(weights(2 * inner, hidden, 100), num_experts),
        down=backend.pack_experts(weights(hidden, inner, 300), num_experts),
        top_k=top_k,
        normalizes=True,
    )


def test_outputs_are_near_fp64(
    backend: Backend, layer: Experts, device: torch.device, dtype: torch.dtype
) -> None:
    """Token by token, expert by expert."""
    assert layer.gate_up.stacked is not None and layer.down.stacked is not None
    x = _random(40, SIZES[2], seed=8, device=device).to(dtype)
    found = backend.experts(x, layer, SHAPE, canonical=False).double()
    weights, ids = backend.route(
        backend.logits(x, layer.router, canonical=True), layer.top_k, normalizes=True
    )
    logits = x.double() @ layer.router.data.double().T
    top = logits.topk(layer.top_k + 1, 1)
    is_clear = (top.values[:, :-1] - top.values[:, 1:]).amin(1) > 1e-3  # another order is another result
    assert torch.equal(ids.long()[is_clear], top.indices[is_clear, :-1])
    assert torch.allclose(weights.double(), top.values[:, :-1].softmax(1), atol=1e-3)
    for row in range(len(x)):
        expected = torch.zeros(SIZES[2], dtype=torch.float64, device=device)
        for weight, number in zip(weights[row].double(), ids[row].tolist(), strict=True):
            gate_up, down = layer.gate_up.linears[number], layer.down.linears[number]
            assert gate_up.bias is not None and down.bias is not None
            both = gate_up.data.double() @ x[row].double() + gate_up.bias.double()
            gate, up = both.chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected += weight * (down.data.double() @ inner + down.bias.double())
        scale = expected.abs().max()
        assert (found[row] - expected).abs().max() < scale * (1e-5 if dtype is torch.float32 else 3e-2)


def test_every_form_has_the_bits_of_the_canonical_one(
    backend: Backend, layer: Experts, device: torch.device, dtype: torch.dtype
) -> None:
    for linears in (layer.gate_up.linears, layer.down.linears):
        linear = linears[3]
        x = _random(max(COUNTS), linear.in_features, seed=2, device=device).to(dtype)
        expected = backend.logits(x, linear, canonical=True)
        for formed in backend.expert_forms(linear):
            for count in COUNTS:
                found = backend.logits(x[-count:].contiguous(), formed, canonical=False)
                assert torch.equal(found, expected[-count:])


@pytest.mark.parametrize("crowd", ["same", "others"])
def test_token_has_the_same_bits_among_any_others(
    backend: Backend, layer: Experts, device: torch.device, dtype: torch.dtype, crowd: str
) -> None:
    """Others choose the same experts, so that those get all tokens, or their own."""
    hidden = SIZES[2]
    probe = _random(1, hidden, seed=5, device=device).to(dtype)
    expected = backend.experts(probe, layer, SHAPE, canonical=True)
    others = _random(max(COUNTS), hidden, seed=6, device=device).to(dtype)
    for count in COUNTS:
        neighbours = probe.expand(count, -1) if crowd == "same" else others[:count]
        place = count // 2
        batch = torch.cat([neighbours[:place], probe, neighbours[place:]])
        found = backend.experts(batch, layer, SHAPE, canonical=True)
        assert torch.equal(found[place], expected[0])
        logits = backend.logits(batch, layer.router, canonical=True)
        fast = _with_these_logits(backend, batch, layer, logits)
        assert torch.equal(fast[place], expected[0])


def _with_these_logits(backend: Backend, x: Tensor, layer: Experts, logits: Tensor) -> Tensor:
    """The experts in the form of a fast pass. The router's fast GEMM is certified apart."""
    with pytest.MonkeyPatch.context() as patch:
        from holdfast.numerics.backends.triton.gemms import gemm

        patch.setattr(gemm, "multiply_fp32", lambda *given, **settings: logits[None])
        return backend.experts(x, layer, SHAPE, canonical=False)
