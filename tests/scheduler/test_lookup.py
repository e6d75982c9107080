"""Prompt look-up: silent guesses first, candidates only where they are worth their rows."""

import pytest

from holdfast.scheduler.ngram_proposer import MAX_GUESSES, NGRAM, ROW_COST, NgramProposer, num_worthwhile

TEXT = (5, 6, 7, 8, 9, 10, 11, 12)


def test_what_followed_the_last_tokens_before_is_expected_again() -> None:
    lookup = NgramProposer((*TEXT, 1, 2, *TEXT[:NGRAM]))
    assert lookup.guesses(3) == TEXT[NGRAM : NGRAM + 3]
    assert lookup.guesses(0) == ()


def test_of_several_occurrences_the_last_counts() -> None:
    assert NgramProposer((5, 6, 7, 1, 5, 6, 7, 2, 5, 6, 7)).guesses(1) == (2,)


def test_a_run_is_followed_to_its_end_and_beyond_in_circles() -> None:
    lookup = NgramProposer((5, 6, 7, 5, 6, 7))
    assert lookup.guesses(5) == (5, 6, 7, 5, 6)


def test_a_run_that_is_being_repeated_goes_on_past_a_later_occurrence() -> None:
    # 5 6 7 stands twice; the text is repeating the first occurrence, so what followed that one is expected.
    lookup = NgramProposer((1, 2, 3, 5, 6, 7, 8, 4, 5, 6, 7, 9, 1, 2, 3))
    for token_id in (5, 6, 7):
        lookup.commit(token_id)
    assert lookup.guesses(1) == (8,)


def test_text_without_repetition_expects_nothing_and_loses_no_confidence() -> None:
    lookup = NgramProposer(range(40))
    for token_id in range(40, 80):
        lookup.commit(token_id)
    assert lookup.guesses(4) == ()
    assert lookup.chance == 0.5


def test_right_guesses_raise_the_chance_and_wrong_ones_lower_it() -> None:
    lookup = NgramProposer(TEXT * 2)
    for token_id in TEXT:
        before = lookup.chance
        lookup.commit(token_id)
        assert lookup.chance > before
    for token_id in (30, 31, 32):
        before = lookup.chance
        was_guessed = bool(lookup.guesses(1))
        lookup.commit(token_id)
        assert (lookup.chance < before) is was_guessed


@pytest.mark.parametrize("num_tokens", [1, 2, 8, 32, 500])
def test_a_guess_is_proposed_while_it_stands_more_often_than_its_row_costs(num_tokens: int) -> None:
    share = ROW_COST * num_tokens / (1 + ROW_COST * (num_tokens - 1))
    for chance in (0.01, 0.3, 0.5, 0.9, 0.99, 0.999, 1.0):
        count = num_worthwhile(chance, num_tokens)
        assert 0 <= count <= MAX_GUESSES
        if count:
            assert chance**count >= share * 0.999
        if count < MAX_GUESSES:
            assert chance ** (count + 1) <= share * 1.001


def test_a_full_pass_has_no_room_for_doubt() -> None:
    assert num_worthwhile(0.9, 1) > 5
    assert num_worthwhile(0.9, 64) == 0
