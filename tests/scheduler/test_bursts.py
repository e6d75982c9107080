"""Bursts: fast passes and the windows over their candidates; bursts planned before the last verdict is read."""

import pytest
from scripted import COPIES
from test_schedules import AnyForm

from holdfast.core.step_plan import SAMPLED_RING_SIZE, UNKNOWN_TOKEN, PassKind, StepPlan
from holdfast.scheduler import policy
from holdfast.scheduler.policy import choose_burst
from scheduler.driver import ROWS, Driver, spans_of, truth

PROMPT = (1, 2, 3, 1, 2)


def burst(**changes: object) -> Driver:
    return Driver("verify", async_scheduling=True, speculation="off", **changes)  # type: ignore[arg-type]


def grown(driver: Driver) -> int:
    """A request whose windows have four candidates by now; nothing is in flight."""
    number = driver.submit(PROMPT, 60)
    while driver.scheduler.requests[0].window_cap < 4:
        driver.step()
    while driver.in_flight:
        driver.read()
    return number


def test_burst_is_one_plan_and_one_wait() -> None:
    driver = burst()
    number = driver.submit(PROMPT, 40)
    driver.finish()
    stats = driver.ended[number].stats
    assert driver.answers[number] == truth(PROMPT, 40)
    assert driver.runner.num_waits == driver.runner.num_started == stats.windows + 1  # and the prefill
    assert stats.windows < 10
    assert stats.candidates == stats.accepted == stats.fast_passes
    widest = max(span.num_tokens for one in driver.runner.passes for span in one.spans)
    assert widest == ROWS, "windows grow until they fill a reference pass"


def test_burst_passes_sample_from_each_other() -> None:
    driver = burst()
    number = grown(driver)
    plan = driver.start()
    at = driver.state(number).tokens.committed_len - 1
    spans = spans_of(plan, number)
    assert [one.kind for one in plan.passes] == [PassKind.FAST] * 4 + [PassKind.CANONICAL]
    assert [span.start for span in spans] == [at, at + 1, at + 2, at + 3, at]
    assert [span.token_ids.count(UNKNOWN_TOKEN) for span in spans] == [0, 1, 1, 1, 4]
    assert spans[-1].num_sampled == 5


def test_next_burst_assumes_the_window_in_flight_is_accepted() -> None:
    driver = burst()
    number = grown(driver)
    first, second = spans_of(driver.start(), number), spans_of(driver.start(), number)
    stop = first[-1].stop
    assert [span.start for span in second] == [stop, stop + 1, stop + 2, stop + 3, stop]
    assert all(set(span.token_ids) == {UNKNOWN_TOKEN} for span in second)
    assert second[-1].num_sampled == 5
    driver.finish()
    assert driver.answers[number] == truth(PROMPT, 60)
    runner = driver.runner
    assert runner.num_ahead > runner.num_started // 2


def test_nothing_is_planned_after_a_long_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MAX_OPTIMISTIC_BURST", 4)
    driver = burst()
    number = grown(driver)
    plan = driver.start()
    assert len(plan.passes) == 5
    assert not driver.start(), "a new request would wait for two of them"
    driver.finish()
    assert driver.answers[number] == truth(PROMPT, 60)


def rejected(driver: Driver) -> int:
    """A rejected window has just been read, and the burst that assumed its acceptance is in flight."""
    number = grown(driver)
    assert driver.start()
    driver.runner._error_rate = 1.0
    assert driver.start()
    driver.read()
    driver.runner._error_rate = 0.0
    assert driver.start() and len(driver.in_flight) == 2
    driver.read()
    assert len(driver.in_flight) == 1
    return number


def test_rejected_window_discards_the_burst_after_it() -> None:
    driver = burst()
    number = rejected(driver)
    state = driver.state(number)
    assert state.stats.rollbacks == 1 and not state.in_flight.spans and state.page_table.is_pinned
    committed = state.tokens.committed_len
    (plan, _) = driver.in_flight[0]
    again = spans_of(driver.start(), number)
    assert again[0].start == committed - 1 and again[0].token_ids == (state.tokens.last,)
    driver.read()
    assert state.tokens.committed_len == committed and not state.page_table.is_pinned
    assert spans_of(plan, number)[0].start > committed - 1
    driver.finish()
    stats = driver.ended[number].stats
    assert driver.answers[number] == truth(PROMPT, 60)
    assert stats.rollbacks == 1
    assert stats.candidates == stats.accepted + stats.rolled_back


def test_abort_after_a_rejected_window_keeps_pages_and_request_index() -> None:
    driver = burst(cache=False)
    number = rejected(driver)
    held, request_index = driver.scheduler.pool.num_held, driver.state(number).request_index
    driver.note(driver.scheduler.abort(number))
    driver.scheduler.check()
    assert driver.scheduler.pool.num_held == held
    late = driver.submit((2, 2), 3)
    assert spans_of(driver.start(), late)[0].request_index != request_index
    driver.read()
    assert driver.scheduler.pool.num_held < held
    driver.finish()
    assert driver.answers[late] == truth((2, 2), 3)


def test_low_acceptance_rate_waits_for_verdicts_until_it_recovers() -> None:
    driver = burst(error_rate=1.0, num_pages=128)
    number = driver.submit(PROMPT, 400)
    for _ in range(20):
        driver.step()
    while driver.in_flight:
        driver.read()
    assert driver.start() and not driver.start(), "the next window would be rejected, too"
    driver.runner._error_rate = 0.0
    driver.finish()
    assert driver.answers[number] == truth(PROMPT, 400)
    ahead = [one for one in driver.runner.passes[-10:] if one.kind is PassKind.CANONICAL]
    assert all(set(one.spans[0].token_ids) == {UNKNOWN_TOKEN} for one in ahead)


def test_verify_drafts_whole_windows_from_ngrams() -> None:
    driver = Driver("verify", async_scheduling=True)
    number = driver.submit((COPIES, 2, 1, 3, 1), 200)
    driver.finish()
    assert driver.answers[number] == truth((COPIES, 2, 1, 3, 1), 200)
    assert driver.ended[number].stats.looked_up > 20


@pytest.mark.parametrize("error_rate", [0.1, 0.5, 1.0])
def test_wrong_candidates_in_a_burst_are_rolled_back(error_rate: float) -> None:
    driver = burst(error_rate=error_rate, seqs=6)
    numbers = [driver.submit(PROMPT[: n + 1], 30) for n in range(4)]
    driver.finish()
    for number in numbers:
        stats = driver.ended[number].stats
        assert driver.answers[number] == truth(PROMPT[: number + 1], 30)
        assert stats.candidates == stats.accepted + stats.rolled_back
        assert stats.accepted + stats.canonical_tokens == 30
        assert (stats.accepted == 0) == (error_rate == 1.0)


def test_ordinary_requests_are_in_every_fast_pass_of_a_burst() -> None:
    driver = burst()
    grown(driver)
    ordinary = driver.submit((1, 1), 40, deterministic=False)
    prompt = driver.start()
    driver.read()
    plan = driver.start()
    fast = [one for one in plan.passes if one.kind is PassKind.FAST]
    assert len(fast) >= 4
    assert len(spans_of(plan, ordinary)) == len(fast)
    assert len(spans_of(prompt, ordinary)) > 1, "a finished prompt decodes in the same burst"
    num_before = len(driver.answers[ordinary])
    driver.read()
    assert len(driver.answers[ordinary]) == num_before + len(fast)
    driver.finish()
    assert driver.answers[ordinary] == truth((1, 1), 40)


def test_deterministic_prefill_shortens_the_burst() -> None:
    driver = burst()
    grown(driver)
    late = driver.submit((3, 3, 3), 4)
    plan = driver.start()
    assert spans_of(plan, late)
    assert len(plan.passes) == 2


def test_burst_windows_fill_reference_passes() -> None:
    assert [choose_burst(n, 256) for n in (0, 1, 2, 8, 32, 64, 128)] == [1, 62, 62, 31, 7, 3, 1]
    assert choose_burst(1, 256) + 1 < SAMPLED_RING_SIZE


def test_canonical_passes_decode_alone_where_candidates_would_only_cost_time() -> None:
    assert [choose_burst(n, 256) for n in (130, 200, 256, 300, 512)] == [0] * 5
    assert [choose_burst(n, 256, 4000) for n in (1, 32, 256)] == [0] * 3
    assert choose_burst(8, 256, 20) == 1, "a short prompt leaves room for windows"
    driver = burst(seqs=ROWS, num_pages=256)
    numbers = [driver.submit((1, 2, n), 12) for n in range(ROWS)]
    driver.finish()
    for number in numbers:
        stats = driver.ended[number].stats
        assert driver.answers[number] == truth((1, 2, number), 12)
        assert stats.candidates == 0 and stats.canonical_tokens == 12


def test_ordinary_requests_wait_for_an_awaited_verdict() -> None:
    driver = burst(error_rate=1.0)
    driver.submit(PROMPT, 60)
    driver.submit((1, 1), 60, deterministic=False)
    for _ in range(20):
        driver.step()
    while driver.in_flight:
        driver.read()
    assert driver.start()
    assert not driver.start(), "the ordinary request alone would make half empty passes"


def test_requests_with_penalties_burst_and_requests_with_a_grammar_do_not() -> None:
    driver = burst(error_rate=0.2)
    free, bound = driver.submit(PROMPT, 40), driver.submit((3, 3), 40, grammar=AnyForm())
    penalised = driver.submit((1, 2), 40, presence_penalty=1.0)
    driver.finish()
    for one in driver.runner.passes:
        for span in spans_of(StepPlan((one,)), bound):
            assert UNKNOWN_TOKEN not in span.token_ids
    assert driver.ended[bound].stats.rolled_back == 0, "it proposes no candidates"
    assert driver.ended[penalised].stats.windows > 0
    for number, prompt in ((free, PROMPT), (bound, (3, 3)), (penalised, (1, 2))):
        assert driver.answers[number] == truth(prompt, 40)
