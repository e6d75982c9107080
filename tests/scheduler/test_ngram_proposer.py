"""N-gram proposals: candidates only where they are worth their time."""

import pytest

from holdfast.scheduler.ngram_proposer import MAX_CANDIDATES, NGRAM, TOKEN_COST, NgramProposer, num_worthwhile

TEXT = (5, 6, 7, 8, 9, 10, 11, 12)


def test_proposes_what_followed_the_last_ngram() -> None:
    proposer = NgramProposer((*TEXT, 1, 2, *TEXT[:NGRAM]))
    assert proposer.propose(3) == TEXT[NGRAM : NGRAM + 3]
    assert proposer.propose(0) == ()


def test_last_occurrence_of_an_ngram_counts() -> None:
    assert NgramProposer((5, 6, 7, 1, 5, 6, 7, 2, 5, 6, 7)).propose(1) == (2,)


def test_a_run_that_reaches_its_end_repeats() -> None:
    proposer = NgramProposer((5, 6, 7, 5, 6, 7))
    assert proposer.propose(5) == (5, 6, 7, 5, 6)


def test_a_run_being_repeated_wins_over_a_later_occurrence() -> None:
    # 5 6 7 occurs twice; the text repeats the first occurrence, so what followed that one is proposed.
    proposer = NgramProposer((1, 2, 3, 5, 6, 7, 8, 4, 5, 6, 7, 9, 1, 2, 3))
    for token_id in (5, 6, 7):
        proposer.commit(token_id)
    assert proposer.propose(1) == (8,)


def test_text_without_repetition_proposes_nothing() -> None:
    proposer = NgramProposer(range(40))
    for token_id in range(40, 80):
        proposer.commit(token_id)
    assert proposer.propose(4) == ()
    assert proposer.hit_rate == 0.5


def test_hit_rate_follows_predictions() -> None:
    proposer = NgramProposer(TEXT * 2)
    for token_id in TEXT:
        before = proposer.hit_rate
        proposer.commit(token_id)
        assert proposer.hit_rate > before
    for token_id in (30, 31, 32):
        before = proposer.hit_rate
        had_candidate = bool(proposer.propose(1))
        proposer.commit(token_id)
        assert (proposer.hit_rate < before) is had_candidate


@pytest.mark.parametrize("num_tokens", [1, 2, 8, 32, 500])
def test_candidates_are_worth_their_share_of_the_pass(num_tokens: int) -> None:
    share = TOKEN_COST * num_tokens / (1 + TOKEN_COST * (num_tokens - 1))
    for hit_rate in (0.01, 0.3, 0.5, 0.9, 0.99, 0.999, 1.0):
        count = num_worthwhile(hit_rate, num_tokens)
        assert 0 <= count <= MAX_CANDIDATES
        if count:
            assert hit_rate**count >= share * 0.999
        if count < MAX_CANDIDATES:
            assert hit_rate ** (count + 1) <= share * 1.001


def test_large_pass_has_no_worthwhile_candidates() -> None:
    assert num_worthwhile(0.9, 1) > 5
    assert num_worthwhile(0.9, 64) == 0
