"""The verdict on a window: accepted candidates and exactly one more canonical token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.scheduler.verification import Verdict, judge

TOKENS = st.integers(0, 2)


@given(st.lists(TOKENS, max_size=8), TOKENS, st.data())
def test_judge_accepts_the_longest_common_prefix(
    candidates: list[int], bonus: int, data: st.DataObject
) -> None:
    canonical = [*data.draw(st.lists(TOKENS, min_size=len(candidates), max_size=len(candidates))), bonus]
    verdict = judge(candidates, canonical)
    assert verdict.num_accepted + verdict.num_rejected == len(candidates)
    assert verdict.num_committed == verdict.num_accepted + 1 >= 1
    assert canonical[: verdict.num_accepted] == candidates[: verdict.num_accepted]
    if verdict.num_rejected:
        assert canonical[verdict.num_accepted] != candidates[verdict.num_accepted]


@pytest.mark.parametrize("offset", range(6))
def test_judge_rejects_from_the_first_mismatch(offset: int) -> None:
    candidates = [1, 2, 3, 4, 5]
    canonical = [1, 2, 3, 4, 5, 6]
    if offset < 5:
        canonical[offset] = 99
    assert judge(candidates, canonical) == Verdict(offset, 5 - offset)


def test_agreement_after_a_mismatch_does_not_count() -> None:
    assert judge([1, 2, 3], [9, 2, 3, 4]) == Verdict(0, 3)


def test_window_without_candidates_commits_one_token() -> None:
    assert judge([], [7]) == Verdict(0, 0)


@pytest.mark.parametrize("canonical", [[], [1], [1, 2, 3]])
def test_judge_needs_one_canonical_token_more_than_candidates(canonical: list[int]) -> None:
    with pytest.raises(AssertionError, match=r"n \+ 1 canonical tokens"):
        judge([1], canonical)
