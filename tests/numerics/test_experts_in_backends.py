"""Experts in every backend: the rule of `numerics/experts.py`, and a token alone as among others."""

import pytest
import torch
from torch import Tensor

from holdfast.numerics.experts import Expert, Experts
from holdfast.numerics.layer import LayerShape
from holdfast.numerics.ops import Backend

HIDDEN, INNER, NUM_EXPERTS, TOP_K = 64, 48, 6, 2
SHAPE = LayerShape(heads=1, kv_heads=1, head_dim=64, eps=1e-5, scale=1.0)


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.2


def _layer(ops: Backend, dtype: torch.dtype, *, has_shared: bool) -> Experts:
    def weights(rows: int, width: int, seed: int) -> list[tuple[Tensor, None]]:
        return [(_random(rows, width, seed=seed + number).to(dtype), None) for number in range(NUM_EXPERTS)]

    shared = [_random(2 * INNER, HIDDEN, seed=80), _random(HIDDEN, INNER, seed=81)]
    return Experts(
        router=ops.pack(_random(NUM_EXPERTS, HIDDEN, seed=1).to(dtype)),
        gate_up=ops.pack_experts(weights(2 * INNER, HIDDEN, 10), NUM_EXPERTS),
        down=ops.pack_experts(weights(HIDDEN, INNER, 50), NUM_EXPERTS),
        top_k=TOP_K,
        normalizes=not has_shared,
        shared=Expert(*(ops.pack(part.to(dtype)) for part in shared)) if has_shared else None,
        shared_gate=ops.pack(_random(1, HIDDEN, seed=82).to(dtype)) if has_shared else None,
    )


def _expected(x: Tensor, dtype: torch.dtype, *, has_shared: bool) -> Tensor:
    """In fp64, expert by expert."""

    def mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = (x @ gate_up.to(dtype).double().T).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up) @ down.to(dtype).double().T

    x = x.double()
    probabilities = (x @ _random(NUM_EXPERTS, HIDDEN, seed=1).to(dtype).double().T).softmax(1)
    weights, ids = probabilities.topk(TOP_K, 1)
    if not has_shared:
        weights = weights / weights.sum(1, keepdim=True)
    total = torch.zeros_like(x)
    for row, (row_weights, row_ids) in enumerate(zip(weights, ids.tolist(), strict=True)):
        for weight, number in zip(row_weights, row_ids, strict=True):
            gate_up = _random(2 * INNER, HIDDEN, seed=10 + number)
            total[row] += weight * mlp(x[row], gate_up, _random(HIDDEN, INNER, seed=50 + number))
    if has_shared:
        gate = (x @ _random(1, HIDDEN, seed=82).to(dtype).double().T).sigmoid()
        shared = mlp(x, _random(2 * INNER, HIDDEN, seed=80), _random(HIDDEN, INNER, seed=81))
        total += gate * shared
    return total


@pytest.mark.parametrize("has_shared", [False, True], ids=["routed", "shared"])
def test_experts_follow_the_rule(backend: Backend, dtype: torch.dtype, has_shared: bool) -> None:
    layer = _layer(backend, dtype, has_shared=has_shared)
    for count in (1, 19):
        x = _random(count, HIDDEN, seed=count).to(dtype)
        expected = _expected(x, dtype, has_shared=has_shared)
        for canonical in (True, False):
            found = backend.experts(x, layer, SHAPE, canonical=canonical)
            assert found.dtype == dtype
            assert torch.allclose(found.double(), expected, atol=2e-3 if dtype != torch.bfloat16 else 2e-2)


def test_combine_takes_weights_of_any_layout(backend: Backend, dtype: torch.dtype) -> None:
    outputs = _random(5, TOP_K, HIDDEN, seed=3).to(dtype)
    weights = _random(5, 7 * TOP_K, seed=4)[:, ::7]
    expected = backend.combine(outputs, weights.contiguous())
    assert torch.equal(backend.combine(outputs, weights), expected)
