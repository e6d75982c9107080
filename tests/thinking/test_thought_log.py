"""What a sequence thought, what it is taken to think, and how many thoughts may be taken for granted at once."""

import pytest

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Sampling, Span, ThinkRule, ThoughtIds
from holdfast.thinking.thought_log import FIRST_GUESSES, ThoughtLog, adapt_guesses

CHUNK = 4
FAR = 1000 * CHUNK
HOW = Sampling(SamplingParams(), 1, 20)


def log_of(*, confirms: bool = True, **rule: object) -> ThoughtLog:
    return ThoughtLog(CHUNK, ThinkRule(**rule), confirms=confirms)  # type: ignore[arg-type]


def span_of(log: ThoughtLog, start: int, stop: int) -> Span:
    ids = tuple(range(start, stop))
    return Span(1, start, ids, (), len(ids), HOW, rule=log.rule, guesses=log.guesses(start, stop))


def settle(log: ThoughtLog, length: int) -> tuple[tuple[int, ThoughtIds], ...]:
    new, same = log.settle(length)
    assert same
    return new


# How many guesses


def test_guesses_that_all_stood_are_never_fewer_afterwards() -> None:
    assert adapt_guesses(31, 5, 5) == 31
    assert adapt_guesses(31, 31, 31) == 63
    assert adapt_guesses(1, 1, 1) == 3


def test_behind_a_wrong_guess_twice_as_many_chunks_as_stood_are_read() -> None:
    assert adapt_guesses(31, 0, 31) == 1
    assert adapt_guesses(31, 3, 31) == 7
    assert adapt_guesses(2, 20, 31) == 41


def test_passes_whose_guesses_stand_grow_by_powers_of_two() -> None:
    chunks, most = [], FIRST_GUESSES
    for _ in range(4):
        chunks.append(most + 1)
        most = adapt_guesses(most, most, most)
    assert chunks == [16, 32, 64, 128]


def test_the_number_of_guesses_is_bounded_from_both_sides() -> None:
    most = 1
    for _ in range(40):
        most = adapt_guesses(most, most, most)
    assert most == adapt_guesses(most, most, most) == (1 << 12) - 1
    assert adapt_guesses(1, 0, 1) == 1


# Guesses


@pytest.mark.parametrize(
    ("start", "stop", "count"),
    [(0, 4, 0), (0, 5, 1), (0, 8, 1), (0, 9, 2), (3, 4, 0), (3, 5, 1), (4, 8, 0), (5, 6, 0), (2, 13, 3)],
)
def test_a_guess_for_each_chunk_with_rows_behind_its_end(start: int, stop: int, count: int) -> None:
    assert log_of().guesses(start, stop) == ((),) * count


def test_the_last_thing_found_is_the_next_guess() -> None:
    log = log_of()
    log.judge(span_of(log, 0, 13), [(7,), (), (9, 9)])
    assert log.guesses(0, 13) == ((7,), (), (9, 9))
    log.judge(span_of(log, 4, 8), [(8,)])
    assert log.guesses(0, 13) == ((7,), (8,), (9, 9))


def test_what_is_forced_or_not_thought_about_is_known() -> None:
    log = log_of(until=11, forced=((0, (5,)), (1, ()), (2, (6,))))
    log.judge(span_of(log, 0, 17), [(5,), (), (), ()])
    assert log.guesses(0, 17) == ((5,), (), (), ())  # chunk 2 ends behind 11
    log.adopt([(1,), (2,), (3,), (4,)])
    assert log.guesses(0, 17) == ((5,), (), (), ())


def test_a_span_reaches_as_far_as_guesses_at_random_may_hang_on_one_another() -> None:
    log = log_of()
    assert log.reach(0, FAR) == log.reach(3, FAR) == (1 + FIRST_GUESSES) * CHUNK
    log.judge(span_of(log, 0, 12), [(7,), (8,), (8,)])
    assert log.reach(4, FAR) == 3 * CHUNK  # one guess
    assert len(log.guesses(4, log.reach(4, FAR))) == 1
    log.judge(span_of(log, 4, 12), [(8,), (8,)])
    assert log.reach(12, FAR) == 7 * CHUNK  # three
    assert log.reach(12, 14) == 14


def test_guesses_with_a_reason_cost_nothing() -> None:
    log = log_of()
    log.judge(span_of(log, 0, 16), [(7,), (), (), ()])
    # Chunks 1, 2 and 3 never thought anything; of 4 nothing is known, and one such guess may be made.
    assert log.reach(4, FAR) == 6 * CHUNK


def test_a_request_that_thinks_no_more_is_read_as_far_as_there_is_room() -> None:
    assert log_of(until=0).reach(0, FAR) == FAR
    assert ThoughtLog(CHUNK, ThinkRule(), confirms=True, max_guesses=0).reach(0, FAR) == CHUNK


def test_what_a_chunk_thought_behind_another_thought_is_remembered() -> None:
    heads, tails = (1,), (2,)
    log = log_of()
    log.judge(span_of(log, 0, 16), [tails, tails, tails, tails])  # nothing was taken for granted
    span = span_of(log, 4, 16)
    assert span.guesses == (tails, tails)
    log.judge(span, [heads, heads, heads])  # each behind tails
    span = span_of(log, 8, 16)
    assert span.guesses == (heads,)  # behind heads nothing is known yet
    log.judge(span, [tails, tails])
    assert log.guesses(8, 17) == (tails, heads)


def test_what_was_computed_before_is_guessed_at_once_when_it_is_computed_again() -> None:
    log = log_of()
    length = 100 * CHUNK
    for start in range(0, length, CHUNK):
        log.judge(span_of(log, start, start + CHUNK), [(start,)])
    settle(log, length)
    log.start_again()
    assert log.reach(0, FAR) >= length
    assert log.guesses(0, length) == tuple((start,) for start in range(0, length - CHUNK, CHUNK))


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
def test_rows_stand_up_to_the_end_of_the_first_chunk_whose_guess_was_wrong(
    found: list[ThoughtIds], right: int, stop: int
) -> None:
    log = log_of()
    span = span_of(log, 2, 14)
    assert log.judge(span, found) == right
    assert log.stands(span, right) == stop


def test_the_last_chunk_needs_no_guess() -> None:
    log = log_of()
    span = span_of(log, 0, 8)
    assert len(span.guesses) == 1
    assert log.stands(span, log.judge(span, [(), (3,)])) == 8


def test_a_span_without_guesses_says_nothing_about_how_many_are_worth_it() -> None:
    log = log_of()
    log.judge(span_of(log, 0, 4), [(3,)])
    assert log.reach(4, FAR) == (2 + FIRST_GUESSES) * CHUNK


# What is told


def test_a_thought_is_told_once_when_all_rows_of_its_chunk_stand() -> None:
    log = log_of()
    log.judge(span_of(log, 0, 12), [(1,), (2,), (3,)])
    assert settle(log, 3) == ()
    assert settle(log, 4) == ((0, (1,)),)
    assert settle(log, 7) == ()
    assert settle(log, 12) == ((1, (2,)), (2, (3,)))
    assert settle(log, 12) == ()


def test_a_chunk_that_is_not_thought_about_is_not_told() -> None:
    log = log_of(until=8)
    log.judge(span_of(log, 0, 12), [(1,), (), ()])
    assert settle(log, 12) == ((0, (1,)), (1, ()))


def test_nothing_is_told_of_a_request_that_does_not_think() -> None:
    log = log_of(until=0)
    log.judge(span_of(log, 0, 12), [(), (), ()])
    assert settle(log, 12) == ()


@pytest.mark.parametrize("again", [(1,), (9,)])
@pytest.mark.parametrize("confirms", [True, False])
def test_what_was_told_must_come_out_again_if_it_was_promised(again: ThoughtIds, confirms: bool) -> None:
    log = log_of(confirms=confirms)
    log.judge(span_of(log, 0, 8), [(1,), (2,)])
    settle(log, 8)
    log.start_again()
    log.judge(span_of(log, 0, 4), [again])
    assert log.settle(4) == ((), again == (1,) or not confirms)
    log.judge(span_of(log, 4, 12), [(2,), (3,)])
    assert log.settle(12) == (((2, (3,)),), True)


# What others may read


def test_pages_are_shared_as_far_as_the_tokens_alone_decide_them() -> None:
    assert log_of().shared_len(20) == 20
    assert log_of(until=9).shared_len(20) == 9
    assert log_of(until=30).shared_len(20) == 20
    assert log_of(until=0).shared_len(20) == 0
    assert log_of(forced=((3, ()),)).shared_len(20) == 0


def test_the_thoughts_of_a_page_go_with_it() -> None:
    one, other = log_of(), log_of()
    one.judge(span_of(one, 0, 16), [(1,), (), (3,), (4,)])
    assert one.of_pages(0, 8) == ((1,), ())
    assert one.of_pages(8, 16) == ((3,), (4,))
    other.adopt([*one.of_pages(0, 8), *one.of_pages(8, 16)])
    assert settle(other, 16) == settle(one, 16)


def test_what_was_told_is_in_doubt_until_it_is_confirmed() -> None:
    log = log_of()
    log.judge(span_of(log, 0, 8), [(1,), (2,)])
    settle(log, 8)
    assert not log.is_doubted
    log.start_again()  # pages were given up, and nothing else
    assert not log.is_doubted
    log.doubt()
    assert log.is_doubted
    settle(log, 4)
    assert log.is_doubted
    settle(log, 8)
    log.start_again()
    assert not log.is_doubted
