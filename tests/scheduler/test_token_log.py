"""Prompt, committed tokens, candidates: three parts of one list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.scheduler.token_log import TokenLog

IDS = st.lists(st.integers(0, 99), max_size=8)


def test_lengths_and_ids() -> None:
    log = TokenLog([5, 6])
    log.commit(7)
    log.propose(8)
    log.propose(9)
    assert (log.prompt_len, log.committed_len, log.total_len) == (2, 3, 5)
    assert (log.num_output, log.num_candidates) == (1, 2)
    assert (log.ids(2, 3), log.candidates) == ((7,), (8, 9))
    assert log.ids(1, 4) == (6, 7, 8)


def test_commit_refuses_unverified_candidates() -> None:
    log = TokenLog([1])
    log.propose(2)
    with pytest.raises(AssertionError, match="verified"):
        log.commit(3)


@given(IDS, st.lists(st.tuples(st.sampled_from(["propose", "drop", "commit"]), IDS), max_size=12))
def test_token_log_behaves_like_two_lists(prompt: list[int], steps: list[tuple[str, list[int]]]) -> None:
    log, committed, candidates = TokenLog(prompt), list(prompt), []
    for action, ids in steps:
        if action == "propose":
            for token_id in ids:
                log.propose(token_id)
            candidates += ids
        else:
            assert log.drop_candidates() == len(candidates)
            candidates = []
            if action == "commit":
                for token_id in ids:
                    log.commit(token_id)
                committed += ids
        assert log.ids(0, log.total_len) == (*committed, *candidates)
        assert log.ids(len(prompt), log.committed_len) == tuple(committed[len(prompt) :])
        assert log.candidates == tuple(candidates)
        assert log.num_candidates == len(candidates)
