"""The verdict on a window: accepted candidates and exactly one more canonical token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.scheduler.verification import count_accepted

TOKENS = st.integers(0, 2)


@given(st.lists(TOKENS, max_size=8), TOKENS, st.data())
def test_the_longest_common_prefix_is_accepted(
    candidates: list[int], bonus: int, data: st.DataObject
) -> None:
    canonical = [*data.draw(st.lists(TOKENS, min_size=len(candidates), max_size=len(candidates))), bonus]
    num_accepted = count_accepted(candidates, canonical)
    assert 0 <= num_accepted <= len(candidates)
    assert canonical[:num_accepted] == candidates[:num_accepted]
    if num_accepted < len(candidates):
        assert canonical[num_accepted] != candidates[num_accepted]


@pytest.mark.parametrize(
    ("candidates", "canonical", "num_accepted"),
    [
        ([1, 2, 3], [99, 2, 3, 4], 0),
        ([1, 2, 3], [1, 99, 3, 4], 1),
        ([1, 2, 3], [1, 2, 99, 4], 2),
        ([1, 2, 3], [1, 2, 3, 99], 3),
        ([], [7], 0),
    ],
)
def test_candidates_are_rejected_from_the_first_mismatch_on(
    candidates: list[int], canonical: list[int], num_accepted: int
) -> None:
    assert count_accepted(candidates, canonical) == num_accepted


@pytest.mark.parametrize("canonical", [[], [1], [1, 2, 3]])
def test_a_window_needs_one_canonical_token_more_than_candidates(canonical: list[int]) -> None:
    with pytest.raises(AssertionError, match=r"n \+ 1 canonical tokens"):
        count_accepted([1], canonical)
