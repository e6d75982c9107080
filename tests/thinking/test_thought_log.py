"""Thoughts of a request: guessed, verified, committed; how many may be guessed at once."""

import pytest

from holdfast.core.request import Request
from holdfast.core.results import ThoughtIds
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Sampling, Span
from holdfast.thinking.log import FIRST_GUESSES, ThinkRule, ThoughtLog, ThoughtLogs, adapt_guesses, guesses_of

CHUNK = 4
FAR = 1000 * CHUNK
HOW = Sampling(SamplingParams(), 1, 20)


def log_of(*, confirms: bool = True, **rule: object) -> ThoughtLog:
    return ThoughtLog(ThoughtLogs(CHUNK), ThinkRule(**rule), confirms=confirms)  # type: ignore[arg-type]


def span_of(log: ThoughtLog, start: int, stop: int) -> Span:
    ids = tuple(range(start, stop))
    return Span(1, start, ids, (), len(ids), HOW, extra=log.guess(start, stop))


def commit(log: ThoughtLog, length: int) -> tuple[tuple[int, ThoughtIds], ...]:
    new, is_same = log.commit(length)
    assert is_same
    return new


# How many guesses


@pytest.mark.parametrize(
    ("limit", "num_right", "num_guessed", "adapted"),
    [
        *((31, 5, 5, 31), (31, 31, 31, 63), (1, 1, 1, 3)),  # right guesses never lower the limit
        *((31, 0, 31, 1), (31, 3, 31, 7), (2, 20, 31, 41), (1, 0, 1, 1)),  # twice the valid chunks are read
        ((1 << 12) - 1, (1 << 12) - 1, (1 << 12) - 1, (1 << 12) - 1),
    ],
)
def test_limit_follows_the_guesses(limit: int, num_right: int, num_guessed: int, adapted: int) -> None:
    assert adapt_guesses(limit, num_right, num_guessed) == adapted


# Guesses


@pytest.mark.parametrize(
    ("start", "stop", "count"),
    [(0, 4, 0), (0, 5, 1), (0, 8, 1), (0, 9, 2), (3, 4, 0), (3, 5, 1), (4, 8, 0), (5, 6, 0), (2, 13, 3)],
)
def test_one_guess_for_each_chunk_with_tokens_after_it(start: int, stop: int, count: int) -> None:
    assert log_of().guess(start, stop).guesses == ((),) * count


def test_the_latest_thought_is_the_next_guess() -> None:
    log = log_of()
    log.update(span_of(log, 0, 13), [(7,), (), (9, 9)])
    assert log.guess(0, 13).guesses == ((7,), (), (9, 9))
    log.update(span_of(log, 4, 8), [(8,)])
    assert log.guess(0, 13).guesses == ((7,), (8,), (9, 9))


def test_forced_and_excluded_chunks_are_known() -> None:
    log = log_of(until=11, forced=((0, (5,)), (1, ()), (2, (6,))))
    log.update(span_of(log, 0, 17), [(5,), (), (), ()])
    assert log.guess(0, 17).guesses == ((5,), (), (), ())  # chunk 2 ends after 11
    log.adopt([((1,), (2,)), ((3,), (4,))])
    assert log.guess(0, 17).guesses == ((5,), (), (), ())


def test_limit_limits_unpredicted_guesses() -> None:
    log = log_of()
    assert log.limit(0, FAR) == log.limit(3, FAR) == (1 + FIRST_GUESSES) * CHUNK
    log.update(span_of(log, 0, 12), [(7,), (8,), (8,)])
    assert log.limit(4, FAR) == 3 * CHUNK  # one guess
    assert len(log.guess(4, log.limit(4, FAR)).guesses) == 1
    log.update(span_of(log, 4, 12), [(8,), (8,)])
    assert log.limit(12, FAR) == 7 * CHUNK  # three
    assert log.limit(12, 14) == 14


def test_predicted_guesses_do_not_count_against_the_limit() -> None:
    log = log_of()
    log.update(span_of(log, 0, 16), [(7,), (), (), ()])
    # Chunks 1, 2 and 3 never thought anything; of 4 nothing is known, and one such guess may be made.
    assert log.limit(4, FAR) == 6 * CHUNK


def test_limit_without_thinking_is_unlimited() -> None:
    assert log_of(until=0).limit(0, FAR) == FAR
    none = ThoughtLogs(CHUNK, max_guesses=0)
    assert ThoughtLog(none, ThinkRule(), confirms=True).limit(0, FAR) == CHUNK


def test_restart_guesses_all_committed_thoughts() -> None:
    log = log_of()
    length = 100 * CHUNK
    for start in range(0, length, CHUNK):
        log.update(span_of(log, start, start + CHUNK), [(start,)])
    commit(log, length)
    log.restart()
    assert log.limit(0, FAR) >= length
    assert log.guess(0, length).guesses == tuple((start,) for start in range(0, length - CHUNK, CHUNK))


# The last chunk of a prompt


def test_a_settled_chunk_is_closed_before_the_last_token_of_the_prompt() -> None:
    log = log_of(settled=10)
    spans = {(8, 10): 0, (8, 11): 1, (0, 10): 2, (0, 12): 3, (10, 16): 0, (10, 17): 1, (6, 17): 3}
    for (start, stop), count in spans.items():
        assert len(log.guess(start, stop).guesses) == count, (start, stop)
    assert ThoughtLog(ThoughtLogs(CHUNK, max_guesses=0), log.rule, confirms=True).limit(9, FAR) == 10
    span = span_of(log, 8, 16)
    assert log.num_valid(span, [(7,), ()]) == 2
    log.update(span, [(7,), ()])
    assert commit(log, 9) == ((0, ()), (1, ()))
    assert commit(log, 10) == ((2, (7,)),)
    assert commit(log, 15) == ()
    assert commit(log, 16) == ((3, ()),)
    assert log.shareable_len(30, tokens) == 10


@pytest.mark.parametrize(
    ("prompt_len", "settled"), [(4, None), (5, None), (6, 5), (8, 7), (9, None), (10, 9), (1, None)]
)
def test_a_prompt_is_settled_in_the_chunk_of_its_last_token(prompt_len: int, settled: int | None) -> None:
    request = Request(0, tuple(range(prompt_len)), SamplingParams(), 0)
    assert ThoughtLogs(CHUNK, settle=True)(request).rule.settled == settled
    assert ThoughtLogs(CHUNK)(request).rule.settled is None


# What a page shows


def test_shown_chunks_say_what_was_guessed_thought_and_committed() -> None:
    log = log_of(settled=10)
    log.update(span_of(log, 0, 11), [(7,), (), (8, 8)])
    commit(log, 4)
    assert [tuple(each) for each in log.shown(14)] == [
        # number, first position, end, thought, is it committed, is a state read, the wrong guess
        (0, 0, 4, (7,), True, False, ()),
        (1, 4, 8, (), False, True, None),
        (2, 8, 10, (8, 8), False, False, None),
        (3, 10, 16, None, False, True, None),
    ]
    log.update(span_of(log, 4, 11), [(), (8, 8)])
    assert [each.wrong for each in log.shown(14)] == [None] * 4
    assert log_of(until=0).shown(14) == ()
    assert [each.first for each in log_of().shown(300)] == list(range(60, 301, 4))


def test_shown_states_are_carried_up_to_a_reset() -> None:
    log = ThoughtLog(ThoughtLogs(CHUNK, carry=True), ThinkRule(resets=frozenset({2})), confirms=True)
    log.update(span_of(log, 0, 16), [(7,), (), (), ()])
    assert [each.has_state for each in log.shown(16)] == [False, True, True, False, False]


# Verdicts


@pytest.mark.parametrize(
    ("found", "right", "stop"),
    [
        ([(), (), ()], 3, 14),
        ([(1,), (), ()], 0, 4),
        ([(), (1,), ()], 1, 8),
        ([(), (), (1,)], 2, 12),
        ([(1,), (1,), (1,)], 0, 4),
    ],
)
def test_tokens_are_valid_up_to_the_first_wrong_guess(found: list[ThoughtIds], right: int, stop: int) -> None:
    log = log_of()
    span = span_of(log, 2, 14)
    assert log.num_valid(span, found) == stop - span.start
    assert log.update(span, found) == (3, right)


def test_the_last_chunk_needs_no_guess() -> None:
    log = log_of()
    span = span_of(log, 0, 8)
    assert len(guesses_of(span)) == 1
    assert log.num_valid(span, [(), (3,)]) == 8


def test_span_without_guesses_keeps_the_limit() -> None:
    log = log_of()
    log.update(span_of(log, 0, 4), [(3,)])
    assert log.limit(4, FAR) == (2 + FIRST_GUESSES) * CHUNK


# What is committed


def test_a_thought_is_committed_once_with_its_chunk() -> None:
    log = log_of()
    log.update(span_of(log, 0, 12), [(1,), (2,), (3,)])
    assert commit(log, 3) == ()
    assert commit(log, 4) == ((0, (1,)),)
    assert commit(log, 7) == ()
    assert commit(log, 12) == ((1, (2,)), (2, (3,)))
    assert commit(log, 12) == ()


@pytest.mark.parametrize(("until", "committed"), [(8, ((0, (1,)), (1, ()))), (0, ())])
def test_excluded_chunk_commits_no_thought(until: int, committed: tuple[object, ...]) -> None:
    log = log_of(until=until)
    log.update(span_of(log, 0, 12), [(1,), (), ()] if until else [(), (), ()])
    assert commit(log, 12) == committed


@pytest.mark.parametrize("again", [(1,), (9,)])
@pytest.mark.parametrize("confirms", [True, False])
def test_sent_thoughts_must_come_out_again_if_confirmed(again: ThoughtIds, confirms: bool) -> None:
    log = log_of(confirms=confirms)
    log.update(span_of(log, 0, 8), [(1,), (2,)])
    commit(log, 8)
    log.restart()
    log.update(span_of(log, 0, 4), [again])
    assert log.commit(4) == ((), again == (1,) or not confirms)
    log.update(span_of(log, 4, 12), [(2,), (3,)])
    assert log.commit(12) == (((2, (3,)),), True)


# What others may read


def test_shared_len_covers_what_tokens_alone_decide() -> None:
    assert log_of().shareable_len(20, tokens) == 20
    assert log_of(until=9).shareable_len(20, tokens) == 9
    assert log_of(until=30).shareable_len(20, tokens) == 20
    assert log_of(until=0).shareable_len(20, tokens) == 0
    assert log_of(forced=((3, ()),)).shareable_len(20, tokens) == 0


@pytest.mark.parametrize("seen", [(30,), (18, 30), (13, 14, 15, 16, 30), tuple(range(1, 31))])
def test_pages_with_a_message_start_in_the_answer_are_not_shared(seen: tuple[int, ...]) -> None:
    """In a prompt with the same tokens the state ends there."""
    logs = ThoughtLogs(CHUNK, reset_ids=(13, 14))
    for read_len, expected in ((0, 12), (14, 12), (15, 30), (30, 30)):
        log = ThoughtLog(logs, ThinkRule(), confirms=True, read_len=read_len)
        for length in seen:
            assert log.shareable_len(length, tokens) == min(length, expected if length > 14 else 30)
        log.restart()
        assert log.shareable_len(30, lambda start, stop: range(start + 40, stop + 40)) == 30


def tokens(start: int, stop: int) -> range:
    """Token p at position p."""
    return range(start, stop)


def test_thoughts_of_pages_can_be_adopted() -> None:
    one, other = log_of(), log_of()
    one.update(span_of(one, 0, 16), [(1,), (), (3,), (4,)])
    assert one.of_pages(0, 8) == ((1,), ())
    assert one.of_pages(8, 16) == ((3,), (4,))
    other.adopt([one.of_pages(0, 8), one.of_pages(8, 16)])
    assert commit(other, 16) == commit(one, 16)


def test_sent_thoughts_are_unconfirmed_until_computed_again() -> None:
    log = log_of()
    log.update(span_of(log, 0, 8), [(1,), (2,)])
    commit(log, 8)
    assert not log.has_unconfirmed
    log.restart()  # pages were given up, and nothing else
    assert not log.has_unconfirmed
    log.unconfirm()
    assert log.has_unconfirmed
    commit(log, 4)
    assert log.has_unconfirmed
    commit(log, 8)
    log.restart()
    assert not log.has_unconfirmed
