"""Experts: a token's output depends on its own row only, whoever shares its experts."""

from functools import partial

import pytest
import torch
from torch import Tensor

from holdfast.numerics.experts import Expert, ExpertLinears, Experts, combine, route, run_experts
from holdfast.numerics.ops import Backend

HIDDEN, INNER, NUM_EXPERTS, TOP_K = 48, 40, 5, 2


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _experts(ops: Backend, dtype: torch.dtype, router: Tensor, *, has_shared: bool) -> Experts:
    def expert(seed: int) -> Expert:
        gate_up, down = _random(2 * INNER, HIDDEN, seed=seed), _random(HIDDEN, INNER, seed=seed + 50)
        return Expert(ops.pack(gate_up.mul(0.2).to(dtype)), ops.pack(down.mul(0.2).to(dtype)))

    experts = [expert(seed) for seed in range(NUM_EXPERTS)]
    return Experts(
        router=ops.pack(router.to(dtype)),
        gate_up=ExpertLinears(tuple(one.gate_up for one in experts)),
        down=ExpertLinears(tuple(one.down for one in experts)),
        top_k=TOP_K,
        normalizes=not has_shared,
        shared=expert(90) if has_shared else None,
        shared_gate=ops.pack(_random(1, HIDDEN, seed=3).to(dtype)) if has_shared else None,
    )


@pytest.mark.parametrize("has_shared", [False, True], ids=["routed", "shared"])
def test_output_of_a_token_does_not_depend_on_the_others(
    c_backend: Backend, dtype: torch.dtype, has_shared: bool
) -> None:
    """Neighbours that all choose one expert, and neighbours that choose others."""
    ops = c_backend
    layer = _experts(ops, dtype, _random(NUM_EXPERTS, HIDDEN, seed=1), has_shared=has_shared)
    run = partial(run_experts, ops, layer=layer, activate=ops.silu_mul, canonical=False)
    probe = _random(1, HIDDEN, seed=4).to(dtype)
    alone = run(probe)
    for count in (1, 7, 16, 40):
        same, others = probe.expand(count, -1), _random(count, HIDDEN, seed=count).to(dtype)
        for neighbours in (same, others):
            batch = torch.cat([neighbours[: count // 2], probe, neighbours[count // 2 :]])
            assert torch.equal(run(batch)[count // 2], alone[0])


def test_ties_go_to_the_lowest_expert(c_backend: Backend) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    weights, ids = route(c_backend, logits, 2, normalizes=True)
    assert ids.tolist() == [[1, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_weights_are_those_of_softmax(c_backend: Backend) -> None:
    logits = _random(9, NUM_EXPERTS, seed=6) * 4
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


def test_outputs_are_added_in_the_order_of_a_token_s_experts() -> None:
    outputs = torch.tensor([[[2.0**30], [-(2.0**30)], [1.0]], [[1.0], [2.0**30], [-(2.0**30)]]])
    assert combine(outputs, torch.ones(2, 3)).tolist() == [[1.0], [0.0]]
