"""The scheduler's decisions, each alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.scheduler.policy import (
    MAX_OPTIMISTIC_BURST,
    MIN_ACCEPTANCE_RATE,
    PendingWindow,
    SchedulerConfig,
    assume_accepted,
    certified_size,
    choose_due,
    fill_spare,
    is_sooner_shared,
    may_admit,
    prefill_to_defer,
    update_acceptance_rate,
)


def window(number: int, rows: int, due: bool = False, last: int = 0) -> PendingWindow:
    return PendingWindow(number, rows, due, last)


def ids(windows: list[PendingWindow]) -> list[int]:
    return [one.request_id for one in windows]


@pytest.mark.parametrize(
    ("sequences", "rows", "complaint"),
    [(0, 64, "max_num_seqs must be"), (4, 31, "at least 32"), (65, 64, "so that every running request")],
)
def test_impossible_limits_are_refused(sequences: int, rows: int, complaint: str) -> None:
    SchedulerConfig(32, 32, reference_tokens=16)  # the smallest possible ones
    with pytest.raises(ConfigError, match=complaint):
        SchedulerConfig(sequences, rows, reference_tokens=16)


@given(st.integers(1, 40), st.sets(st.integers(1, 40)).map(sorted))
def test_certified_size_is_the_smallest_sufficient_one(rows: int, sizes: list[int]) -> None:
    assert certified_size(rows, sizes) == min((size for size in sizes if size >= rows), default=None)


SIZES = (1, 2, 4, *range(8, 513, 8), 576, 640, 768, 1024, 1536, 2048, 4096)


@pytest.mark.parametrize(
    ("num_decode", "num_prefill", "deferred"),
    [
        (255, 1390, 109),
        (0, 1645, 0),
        (8, 1637, 0),
        (256, 0, 0),
        (256, 200, 0),
        (255, 1281, 0),
        (100, 5000, 0),
    ],
    ids=["large-padding", "no-decode", "few-decode", "no-prefill", "small-padding", "exact", "too-many"],
)
def test_prefill_is_deferred_where_it_saves_padding(num_decode: int, num_prefill: int, deferred: int) -> None:
    assert prefill_to_defer(num_decode, num_prefill, SIZES) == deferred


@given(st.integers(0, 512), st.integers(0, 3584))
def test_deferring_prefill_makes_progress_and_never_adds_padding(num_decode: int, num_prefill: int) -> None:
    deferred = prefill_to_defer(num_decode, num_prefill, SIZES)
    assert 0 <= deferred < max(1, num_prefill)
    if deferred:
        together = certified_size(num_decode + num_prefill, SIZES) + certified_size(num_decode, SIZES)
        apart = num_decode + num_prefill - deferred + certified_size(num_decode + deferred, SIZES)
        assert apart < together


@pytest.mark.parametrize(
    ("pending", "budget", "chosen"),
    [
        ([window(1, 2), window(2, 3, due=True)], 64, [2]),
        ([window(1, 2), window(2, 3)], 64, []),
        ([window(1, 4), window(2, 4)], 64, [1, 2]),  # any window, once windows fill a pass
        ([window(1, 5, True, last=9), window(2, 5, True, last=3), window(3, 5, True, last=6)], 10, [2, 3]),
        ([window(1, 5, False, last=0), window(2, 5, True, last=9)], 8, [2]),
    ],
    ids=["due", "none-due", "full", "longest-ago-first", "due-first"],
)
def test_windows_of_a_pass(pending: list[PendingWindow], budget: int, chosen: list[int]) -> None:
    assert ids(choose_due(pending, 8, budget)) == chosen


def test_windows_that_are_not_due_fill_whole_reference_passes() -> None:
    pending = [window(number, 3) for number in range(6)]
    assert (
        sum(one.num_tokens for one in choose_due(pending, 8, 64)) == 15
    )  # of 16: a sixth window would be padding
    assert sum(one.num_tokens for one in choose_due(pending, 8, 8)) == 6


@given(
    st.lists(st.builds(PendingWindow, st.integers(0, 99), st.integers(1, 8), st.booleans(), st.integers(0, 5)),
             max_size=12, unique_by=lambda one: one.request_id),
    st.integers(8, 40),
    st.integers(0, 16),
)  # fmt: skip
def test_windows_keep_to_the_budget_and_are_chosen_once(
    pending: list[PendingWindow], budget: int, spare: int
) -> None:
    chosen = choose_due(pending, 8, budget)
    more = fill_spare(pending, chosen, spare)
    assert sum(one.num_tokens for one in chosen) <= budget
    assert sum(one.num_tokens for one in more) <= spare
    everything = ids(chosen) + ids(more)
    assert len(everything) == len(set(everything))
    if any(one.is_due for one in pending):
        assert chosen[0].is_due  # a due window fits any budget of a reference pass, so one is always verified


def test_spare_tokens_take_the_longest_fitting_window() -> None:
    pending = [window(1, 2), window(2, 5), window(3, 4)]
    assert ids(fill_spare(pending, [pending[0]], 6)) == [2]
    assert ids(fill_spare(pending, [], 3)) == [1]


def test_admission_leaves_a_page_for_every_running_request() -> None:
    assert may_admit(4, 4, 0)
    assert may_admit(4, 6, 2)
    assert not may_admit(4, 5, 2)


def test_one_pass_must_hold_every_running_request_and_some_prompt() -> None:
    assert SchedulerConfig(8, 64, 8, certified_sizes=(1, 16)).one_pass_suffices
    assert not SchedulerConfig(9, 64, 8, certified_sizes=(1, 16)).one_pass_suffices
    assert not SchedulerConfig(9, 64, 8).one_pass_suffices


def test_acceptance_rate_falls_fast_and_recovers_slowly() -> None:
    rate, verdicts = 1.0, 0
    while rate >= MIN_ACCEPTANCE_RATE:
        rate, verdicts = update_acceptance_rate(rate, accepted=False), verdicts + 1
    assert 2 <= verdicts <= 8
    for _ in range(100):
        rate = update_acceptance_rate(rate, accepted=False)
    while rate < MIN_ACCEPTANCE_RATE:
        rate, verdicts = update_acceptance_rate(rate, accepted=True), verdicts + 1
    assert 50 <= verdicts <= 100 and rate <= 1.0


def test_only_short_bursts_are_assumed_accepted() -> None:
    assert assume_accepted(1.0, MAX_OPTIMISTIC_BURST) and assume_accepted(MIN_ACCEPTANCE_RATE, 2)
    assert not assume_accepted(1.0, MAX_OPTIMISTIC_BURST + 1) and not assume_accepted(
        MIN_ACCEPTANCE_RATE - 0.01, 2
    )


@pytest.mark.parametrize(
    ("num_shared", "num_forgone", "waits"),
    [(256, 0, True), (192, 0, False), (64, 192, True), (64, 128, False), (2000, 0, True)],
)
def test_a_request_waits_if_that_saves_as_much_as_it_costs(
    num_shared: int, num_forgone: int, waits: bool
) -> None:
    assert is_sooner_shared(num_shared, num_forgone, 256) is waits
