"""Shares of a step's tokens between tenants."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.sampling_params import SamplingParams
from holdfast.scheduler.fair_share import (
    MAX_COST,
    TokenShares,
    equal_level,
    prompt_cost,
    sampled_cost,
    token_quota,
)


@pytest.mark.parametrize(
    ("demands", "total", "level"),
    [
        ((), 9, 9),
        ((4,), 9, 9),
        ((40,), 9, 9),
        ((4, 5), 9, 9),
        ((4, 50), 9, 5),
        ((50, 50), 9, 4),
        ((1, 1, 50), 9, 7),
    ],
)
def test_equal_level(demands: tuple[int, ...], total: int, level: int) -> None:
    assert equal_level(demands, total) == level


@given(st.lists(st.integers(1, 600), min_size=1, max_size=8), st.integers(16, 512), st.integers(1, 64))
def test_no_tenant_is_slowed_down_by_more_than_the_number_of_tenants(
    demands: list[int], budget: int, reference: int
) -> None:
    """A pass of n tokens costs reference + n. Alone, a tenant computes its whole demand at once."""
    budget = max(budget, len(demands))
    quota = token_quota(demands, budget, reference, is_padded=False)
    given_tokens = [min(demand, quota) for demand in demands]
    assert sum(given_tokens) <= budget
    for demand, got in zip(demands, given_tokens, strict=True):
        alone = min(demand, budget)
        slowdown = (alone / got) * (reference + sum(given_tokens)) / (reference + alone)
        rounding = (quota + 1) / quota
        assert slowdown <= len(demands) * rounding


def test_shares_of_one_tenant_are_the_whole_budget() -> None:
    shares = TokenShares({"a": 9000}, 512, 16, is_padded=False)
    shares.take("a", 500)
    assert shares.left("a") == 512 and not shares.is_shared


def test_shares_of_several_tenants_are_used_up() -> None:
    shares = TokenShares({"a": 9000, "b": 1}, 512, 16, is_padded=False)
    assert shares.left("a") == shares.left("b") == 17
    shares.take("a", 17)
    assert shares.left("a") == 0 and shares.left("b") == 17
    assert TokenShares({"a": 9000, "b": 1}, 512, 16, is_padded=True).left("a") == 16


@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ({}, 1),
        ({"temperature": 1.0, "top_k": 50, "min_p": 0.1, "stop_token_ids": (7,)}, 1),
        ({"logprobs": 0}, 1),
        ({"logprobs": 1}, 2),
        ({"logprobs": 20}, 3),
        ({"presence_penalty": 0.5}, 2),
        ({"logit_bias": {5: 1.0}}, 2),
        ({"bad_words": [f"{at} b" for at in range(1024)]}, 3),
        ({"stop": ["x" * 400] * 16}, 3),
        (
            {
                "logprobs": 20,
                "presence_penalty": 0.5,
                "bad_words": [f"{at} b" for at in range(1024)],
                "logit_bias": dict.fromkeys(range(300), 1.0),
                "stop": ["x" * 400] * 16,
            },
            MAX_COST,
        ),
    ],
    ids=[
        *(
            "plain",
            "sampled",
            "logprob",
            "one alternative",
            "20 alternatives",
            "penalty",
            "bias",
            "bad words",
        ),
        *("stop strings", "everything"),
    ],
)
def test_sampled_cost_grows_with_what_is_asked(settings: dict[str, Any], cost: int) -> None:
    assert sampled_cost(SamplingParams(**settings)) == cost


def test_prompt_cost_grows_with_what_is_asked() -> None:
    assert prompt_cost(num_logprobs=None, is_pooled=False) == 1
    assert prompt_cost(num_logprobs=0, is_pooled=False) == 2
    assert prompt_cost(num_logprobs=20, is_pooled=False) == 4
    assert prompt_cost(num_logprobs=None, is_pooled=True) == 2


def test_dear_tokens_use_up_a_share_sooner() -> None:
    shares = TokenShares({"a": 9000, "b": 1}, 512, 16, is_padded=False)
    assert shares.num_left("a", 1) == 17 and shares.num_left("a", 4) == 4
    shares.take("a", 4, cost=4)
    assert shares.num_left("a", 4) == 1  # anything left is enough for one
    shares.take("a", 1, cost=4)
    assert shares.num_left("a", 1) <= 0


def test_cost_does_not_limit_one_tenant() -> None:
    shares = TokenShares({"a": 9000}, 512, 16, is_padded=False)
    assert shares.num_left("a", MAX_COST) == 512
