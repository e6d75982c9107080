"""The verdict on a window: accepted candidates and exactly one canonical token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.scheduler.verification import Verdict, judge

TOKENS = st.integers(0, 2)


@given(st.lists(TOKENS, max_size=8), TOKENS, st.data())
def test_what_stands_is_the_longest_common_beginning(
    candidates: list[int], bonus: int, data: st.DataObject
) -> None:
    canonical = [*data.draw(st.lists(TOKENS, min_size=len(candidates), max_size=len(candidates))), bonus]
    verdict = judge(candidates, canonical)
    assert verdict.accepted + verdict.dropped == len(candidates)
    assert verdict.num_committed == verdict.accepted + 1 >= 1
    assert canonical[: verdict.accepted] == candidates[: verdict.accepted]
    if verdict.dropped:
        assert canonical[verdict.accepted] != candidates[verdict.accepted]
    assert verdict.is_rollback == (verdict.dropped > 0)


@pytest.mark.parametrize("offset", range(6))
def test_a_mismatch_at_every_offset(offset: int) -> None:
    candidates = [1, 2, 3, 4, 5]
    canonical = [1, 2, 3, 4, 5, 6]
    if offset < 5:
        canonical[offset] = 99
    assert judge(candidates, canonical) == Verdict(offset, 5 - offset)


def test_later_agreement_does_not_count() -> None:
    assert judge([1, 2, 3], [9, 2, 3, 4]) == Verdict(0, 3)


def test_an_empty_window_gives_one_token() -> None:
    assert judge([], [7]) == Verdict(0, 0)


@pytest.mark.parametrize("canonical", [[], [1], [1, 2, 3]])
def test_a_window_gives_one_token_more_than_candidates(canonical: list[int]) -> None:
    with pytest.raises(AssertionError, match="one canonical token more"):
        judge([1], canonical)
