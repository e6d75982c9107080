"""Shares of a step's tokens between tenants."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.shares import MAX_COST
from holdfast.scheduler.share_policy import Quotas, token_quota


def quotas(*, is_padded: bool = False, **demands: int) -> Quotas:
    """Of a step of 512 tokens."""
    each = token_quota(demands.values(), 512, 16, is_padded=is_padded)
    return Quotas(512, dict.fromkeys(demands, each))


@given(st.lists(st.integers(1, 600), min_size=2, max_size=8), st.integers(16, 512), st.integers(1, 64))
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


def test_one_tenant_has_the_whole_budget_whatever_its_tokens_cost() -> None:
    alone = Quotas(512)
    alone.take("a", 500)
    assert alone.left("a") == alone.left("a", MAX_COST) == 512


def test_shares_of_several_tenants_are_used_up() -> None:
    shares = quotas(a=9000, b=1)
    assert shares.left("a") == shares.left("b") == 17
    shares.take("a", 17)
    assert shares.left("a") == 0 and shares.left("b") == 17
    assert quotas(a=9000, b=1, is_padded=True).left("a") == 16


def test_dear_tokens_use_up_a_share_sooner() -> None:
    shares = quotas(a=9000, b=1)
    assert shares.left("a", 1) == 17 and shares.left("a", 4) == 4
    shares.take("a", 4, cost=4)
    assert shares.left("a", 4) == 1  # anything left is enough for one
    shares.take("a", 1, cost=4)
    assert shares.left("a", 1) <= 0
