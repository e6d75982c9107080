"""Admission, fairness, preemption, aborts and failures."""

import pytest

from holdfast.core.step_plan import PassKind
from holdfast.errors import PromptTooLong
from scheduler.driver import PAGE_SIZE, ROWS, Driver, truth

PROMPT = (1, 2, 3, 1, 2)


def test_submit_refuses_what_can_never_fit() -> None:
    driver = Driver(num_pages=4)
    driver.submit(PROMPT, 11)  # 16 positions, 4 pages
    with pytest.raises(PromptTooLong, match=r"17 KV positions, the KV budget holds 16.*raise kv_memory"):
        driver.submit(PROMPT, 12)
    driver.finish()


def test_requests_start_in_the_order_of_arrival() -> None:
    driver = Driver(seqs=2, num_pages=12)
    for _ in range(6):
        driver.submit(PROMPT, 10)
    driver.finish()
    assert driver.started == list(range(6))


def test_max_num_seqs_limits_running_requests() -> None:
    driver = Driver(seqs=3)
    for _ in range(7):
        driver.submit(PROMPT, 6)
    while driver.scheduler.has_work:
        driver.step()
        assert driver.scheduler.num_running <= 3


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("mode", ["verify", "auto", "off"])
def test_no_request_starves_when_pages_run_out(mode: str, async_scheduling: bool) -> None:
    """Eight requests of five pages each in seven pages, with newcomers all the time: each ends, the oldest first."""
    driver = Driver(
        mode, num_pages=7, seqs=8, certified=(64,), cache=False, async_scheduling=async_scheduling
    )  # type: ignore[arg-type]
    deterministic = mode != "off"
    for _ in range(4):
        driver.submit(PROMPT, 14, deterministic=deterministic)
    order: list[int] = []
    while driver.scheduler.has_work:
        for event in driver.step():
            if event.request_id in driver.ended and event.request_id not in order:
                order.append(event.request_id)
        if len(driver.answers) < 8 and driver.steps % 5 == 0:
            driver.submit(PROMPT, 14, deterministic=deterministic)
        assert driver.steps < 2000
    assert order == sorted(order)
    assert len(order) == 8
    stats = [driver.ended[number].stats for number in range(8)]
    assert stats[0].preemptions == 0, "the oldest is never preempted"
    assert sum(one.preemptions for one in stats) > 0
    if deterministic:
        assert all(driver.answers[number] == truth(PROMPT, 14) for number in range(8))


def test_abort_between_steps_frees_the_pages_at_once() -> None:
    driver = Driver()
    number = driver.submit(PROMPT, 30)
    for _ in range(4):
        driver.step()
    driver.note(driver.scheduler.abort(number))
    assert driver.scheduler.pool.num_held == 0
    assert driver.ended[number].stats.candidates == (
        driver.ended[number].stats.accepted + driver.ended[number].stats.rolled_back
    )


def test_abort_in_flight_frees_the_pages_when_the_pass_is_over() -> None:
    driver = Driver()
    number, other = driver.submit(PROMPT, 30), driver.submit((2, 2), 12)
    for _ in range(3):
        driver.step()
    plan = driver.plan()
    held = driver.scheduler.pool.num_held
    driver.note(driver.scheduler.abort(number))
    assert driver.scheduler.pool.num_held == held, "a running pass still writes to these pages"
    driver.scheduler.check()
    num_before = len(driver.answers[number])
    driver.update(plan)
    assert len(driver.answers[number]) == num_before, "an aborted request commits nothing"
    assert driver.scheduler.pool.num_held < held
    driver.finish()
    assert driver.answers[other] == truth((2, 2), 12)


def test_abort_of_an_unknown_or_ended_request_does_nothing() -> None:
    driver = Driver()
    number = driver.submit(PROMPT, 1)
    driver.finish()
    assert driver.scheduler.abort(number) == []
    assert driver.scheduler.abort(12345) == []


def test_a_plan_must_be_read_before_the_next() -> None:
    driver = Driver()
    driver.submit(PROMPT)
    driver.scheduler.plan()
    with pytest.raises(AssertionError, match="was not read"):
        driver.scheduler.plan()


@pytest.mark.parametrize("mode", ["verify", "auto"])
def test_a_warm_prefix_is_reused_and_counted(mode: str) -> None:
    driver = Driver(mode, certified=(64,))  # type: ignore[arg-type]
    long = tuple(n % 3 + 1 for n in range(18))
    cold = driver.submit(long, 6)
    driver.finish()
    warm = driver.submit(long, 6)
    driver.finish()
    assert driver.ended[cold].stats.cached_tokens == 0
    assert driver.ended[warm].stats.cached_tokens == 16  # the last token is always computed
    assert driver.answers[warm] == driver.answers[cold] == truth(long, 6)


def test_a_whole_number_of_pages_still_computes_its_last_token() -> None:
    driver = Driver()
    prompt = tuple(range(1, 2 * PAGE_SIZE + 1))
    for _ in range(2):
        number = driver.submit(prompt, 3)
        driver.finish()
    assert driver.ended[number].stats.cached_tokens == PAGE_SIZE


def test_without_the_cache_nothing_is_reused() -> None:
    driver = Driver(cache=False)
    for _ in range(2):
        number = driver.submit(range(1, 12), 3)
        driver.finish()
    assert driver.ended[number].stats.cached_tokens == 0
    assert driver.scheduler.prefix_cache.num_pages == 0


def test_uncertified_canonical_passes_are_multiples_of_the_reference() -> None:
    driver = Driver("verify", error_rate=0.2)
    for length in (1, 7, 8, 9, 30):
        driver.submit(tuple(n % 3 + 1 for n in range(length)), 9)
    driver.finish()
    assert driver.canonical_passes()
    assert all(size % ROWS == 0 and size > 0 for size in driver.canonical_passes())


def test_certified_passes_are_padded_to_the_next_certified_size() -> None:
    sizes = (3, 10, 40)
    driver = Driver("auto", certified=sizes)
    driver.submit(range(1, 6), 5)
    driver.submit(range(1, 50), 5)
    driver.finish()
    for one in driver.runner.passes:
        assert one.certified
        assert one.num_tokens_padded == min(size for size in sizes if size >= one.num_tokens)


def test_auto_without_certified_sizes_verifies() -> None:
    driver = Driver("auto", certified=())
    number = driver.submit(PROMPT, 10)
    driver.finish()
    assert driver.ended[number].determinism == "verified"
    assert driver.ended[number].stats.windows > 0


def test_ordinary_passes_of_an_uncertified_size_are_fast_and_not_padded() -> None:
    driver = Driver("auto", certified=(8, 64))
    driver.submit(range(1, 6), 4, deterministic=False)
    driver.submit(range(1, 9), 1, deterministic=False)
    driver.finish()
    assert {one.kind for one in driver.runner.passes} == {PassKind.FAST}
    assert all(one.num_tokens_padded == one.num_tokens for one in driver.runner.passes)


def test_off_runs_fast_passes_only() -> None:
    driver = Driver("off")
    number = driver.submit(PROMPT, 5, deterministic=False)
    driver.finish()
    assert {one.kind for one in driver.runner.passes} == {PassKind.FAST}
    stats = driver.ended[number].stats
    assert (stats.candidates, stats.accepted, stats.canonical_tokens) == (5, 5, 0)
    assert driver.ended[number].determinism == "none"


def test_ordinary_requests_get_a_token_in_every_step() -> None:
    driver = Driver("verify", seqs=4)
    ordinary = driver.submit((1, 1), 20, deterministic=False)
    for _ in range(3):
        driver.submit(tuple(range(1, 40)), 10)
    driver.step()
    for _ in range(15):
        num_before = len(driver.answers[ordinary])
        driver.step()
        assert len(driver.answers[ordinary]) == num_before + 1


def test_a_long_prompt_does_not_stall_windows_for_more_than_one_pass() -> None:
    driver = Driver("verify", rows=16, seqs=4)
    first = driver.submit((1, 2), 20)
    driver.step()
    driver.submit(tuple(n % 3 + 1 for n in range(120)), 4)
    waits = []
    since = 0
    while first not in driver.ended:
        num_before = len(driver.answers[first])
        driver.step()
        if len(driver.answers[first]) > num_before:
            waits.append(since)
            since = 0
        else:
            since += 1
    assert max(waits) <= ROWS, "a window waits for its own candidates only"
