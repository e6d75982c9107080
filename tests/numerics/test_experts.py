"""Experts: the rule of `numerics/experts.py` in every backend. A token's output depends on its own row only,
whoever shares its experts."""

import pytest
import torch
from torch import Tensor

from holdfast.numerics.experts import Expert, Experts, SigmoidScores, combine, route
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


@pytest.mark.parametrize("has_shared", [False, True], ids=["routed", "shared"])
def test_output_of_a_token_does_not_depend_on_the_others(
    c_backend: Backend, dtype: torch.dtype, has_shared: bool
) -> None:
    """Neighbours that all choose one expert, and neighbours that choose others."""
    layer = _layer(c_backend, dtype, has_shared=has_shared)

    def run(x: Tensor) -> Tensor:
        return c_backend.experts(x, layer, SHAPE, canonical=False)

    probe = 5 * _random(1, HIDDEN, seed=4).to(dtype)
    alone = run(probe)
    for count in (1, 7, 16, 40):
        same, others = probe.expand(count, -1), 5 * _random(count, HIDDEN, seed=count).to(dtype)
        for neighbours in (same, others):
            batch = torch.cat([neighbours[: count // 2], probe, neighbours[count // 2 :]])
            assert torch.equal(run(batch)[count // 2], alone[0])


def test_ties_go_to_the_lowest_expert(c_backend: Backend) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    weights, ids = route(c_backend, logits, 2, normalizes=True)
    assert ids.tolist() == [[1, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_weights_are_those_of_softmax(c_backend: Backend) -> None:
    logits = _random(9, NUM_EXPERTS, seed=6) * 20
    expected = logits.softmax(1).topk(TOP_K, 1)
    for normalizes in (False, True):
        weights, ids = route(c_backend, logits, TOP_K, normalizes=normalizes)
        total = expected.values.sum(1, keepdim=True) if normalizes else 1.0
        assert torch.equal(ids, expected.indices)
        assert (weights - expected.values / total).abs().max() < 1e-6


def test_logits_that_are_no_numbers_choose_experts_that_exist(c_backend: Backend) -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[nan] * 5, [inf] * 5, [-inf] * 5, [nan, -inf, 1.0, inf, nan]])
    for normalizes in (False, True):
        _, ids = route(c_backend, logits, 3, normalizes=normalizes)
        assert ids.tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [3, 2, 0]]


def test_biased_sigmoids_choose_experts(c_backend: Backend) -> None:
    """The bias decides who sees a token, and is no part of the weights. Ties go to the lowest expert."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0], [float("nan"), 0.0, 0.0, 0.0]])
    by = SigmoidScores(torch.tensor([2.0, 0.0, 0.0, -2.0]), 2.0)
    weights, ids = route(c_backend, logits, 2, normalizes=False, sigmoid=by)
    assert ids.tolist() == [[0, 2], [0, 1], [0, 1]]
    torch.testing.assert_close(weights[0], 2.0 * torch.tensor([0.0, 2.0]).sigmoid())
    weights, _ = route(c_backend, logits, 2, normalizes=True, sigmoid=by)
    torch.testing.assert_close(weights.sum(1), torch.full((3,), 2.0), atol=1e-5, rtol=0)


def test_outputs_are_added_in_the_order_of_a_token_s_experts() -> None:
    outputs = torch.tensor([[[2.0**30], [-(2.0**30)], [1.0]], [[1.0], [2.0**30], [-(2.0**30)]]])
    assert combine(outputs, torch.ones(2, 3)).tolist() == [[1.0], [0.0]]
