"""Shares of a step's tokens between tenants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.scheduler.fair_share import TokenShares, equal_level, token_quota


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
