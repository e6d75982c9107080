"""Plans made while another is in flight: where they start, when they must wait, what is kept until they are read."""

import pytest
from scripted import COPIES
from test_schedules import AnyForm

from holdfast.core.step_plan import UNKNOWN_TOKEN
from holdfast.scheduler.ngram_proposer import is_worth_waiting
from scheduler.driver import Driver, spans_of, truth

PROMPT = (1, 2, 3, 1, 2)
CERTIFIED = tuple(range(1, 65))


def certified(**changes: object) -> Driver:
    return Driver("auto", certified=CERTIFIED, async_scheduling=True, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["auto", "verify", "off"])
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("error_rate", [0.0, 0.4, 1.0])
def test_async_scheduling_gives_the_same_answer(mode: str, async_scheduling: bool, error_rate: float) -> None:
    driver = Driver(
        mode,
        certified=CERTIFIED,
        async_scheduling=async_scheduling,
        error_rate=0.0 if mode == "off" else error_rate,
    )  # type: ignore[arg-type]
    numbers = [driver.submit(PROMPT[: n + 1], 12 + n, deterministic=mode != "off") for n in range(4)]
    driver.finish()
    for number in numbers:
        assert driver.answers[number] == truth(PROMPT[: number + 1], 12 + number)
        assert driver.texts[number].seen == driver.answers[number]
        assert driver.ended[number].reason == "length"


def test_next_certified_step_is_planned_before_the_last_is_read() -> None:
    driver = certified(speculation="off")
    number = driver.submit(PROMPT, 20)
    driver.finish()
    runner = driver.runner
    assert runner.num_started == runner.num_waits == 20
    assert runner.num_ahead == 19, "every step but the first is started before the one before it is read"
    assert runner.num_unknown == 19
    assert driver.ended[number].determinism == "certified"


def test_next_span_starts_after_the_span_in_flight() -> None:
    driver = certified(speculation="off")
    number = driver.submit(PROMPT, 20)
    first, second = driver.start(), driver.start()
    (prefill,), (row,) = spans_of(first, number), spans_of(second, number)
    assert (prefill.start, prefill.token_ids, prefill.num_sampled) == (0, PROMPT, 1)
    assert (row.start, row.token_ids, row.sample_from) == (5, (UNKNOWN_TOKEN,), 0)
    assert row.request_index == prefill.request_index >= 0
    driver.read()
    (third,) = spans_of(driver.start(), number)
    assert (third.start, third.token_ids) == (6, (UNKNOWN_TOKEN,))


def test_prefill_chunks_follow_each_other_in_flight() -> None:
    driver = certified(rows=16, seqs=2)
    prompt = tuple(n % 3 + 1 for n in range(40))
    number = driver.submit(prompt, 3)
    chunks = [*spans_of(driver.start(), number), *spans_of(driver.start(), number)]
    driver.read()
    chunks += spans_of(driver.start(), number)
    assert [(span.start, span.num_tokens, span.num_sampled) for span in chunks] == [
        (0, 16, 0),
        (16, 16, 0),
        (32, 8, 1),
    ]
    driver.finish()
    assert driver.answers[number] == truth(prompt, 3)


def test_nothing_is_planned_after_the_last_token() -> None:
    driver = certified(speculation="off")
    driver.submit(PROMPT, 2)
    assert driver.start() and driver.start()
    driver.read()
    assert not driver.start(), "both tokens are committed or in flight"
    driver.finish()
    assert driver.runner.num_started == 2


def test_penalties_do_not_wait_for_tokens_in_flight() -> None:
    driver = certified(speculation="off")
    number = driver.submit(PROMPT, 30, presence_penalty=1.0)
    assert driver.start()
    (span,) = spans_of(driver.start(), number)
    assert span.token_ids == (UNKNOWN_TOKEN,) and not span.history, "the device knows its tokens"
    driver.finish()
    assert driver.answers[number] == truth(PROMPT, 30)


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_only_a_request_with_a_grammar_waits_for_its_token(mode: str) -> None:
    driver = Driver(mode, certified=CERTIFIED, async_scheduling=True, speculation="off")  # type: ignore[arg-type]
    free = driver.submit(PROMPT, 30)
    bound = driver.submit((3, 3), 6, grammar=AnyForm())
    while bound not in driver.ended:
        planned = [bool(spans_of(plan, bound)) for plan, _ in driver.in_flight]
        assert sum(planned) <= 1, "its next token is planned once the last one is read"
        driver.step()
    assert driver.runner.num_ahead > 0 and driver.runner.num_unknown > 0
    driver.finish()
    assert driver.answers[free] == truth(PROMPT, 30)
    assert driver.answers[bound] == truth((3, 3), 6)


def test_request_is_admitted_while_a_plan_is_in_flight() -> None:
    driver = certified(speculation="off")
    driver.submit(PROMPT, 20)
    driver.start()
    late = driver.submit((2, 2), 4)
    assert spans_of(driver.start(), late)
    driver.finish()
    assert driver.answers[late] == truth((2, 2), 4)


def test_no_preemption_while_a_plan_is_in_flight() -> None:
    driver = certified(num_pages=7, seqs=2, cache=False, speculation="off")
    numbers = [driver.submit(PROMPT, 15), driver.submit(PROMPT, 15)]
    empty = 0
    while driver.scheduler.has_work:
        in_flight = bool(driver.in_flight)
        before = sum(state.stats.preemptions for state in driver.scheduler.requests)
        plan = driver.start()
        after = sum(state.stats.preemptions for state in driver.scheduler.requests)
        assert not (in_flight and after > before)
        empty += in_flight and not plan
        if driver.in_flight and (not plan or len(driver.in_flight) > 1):
            driver.read()
    assert empty > 0
    assert sum(driver.ended[number].stats.preemptions for number in numbers) > 0
    assert all(driver.answers[number] == truth(PROMPT, 15) for number in numbers)


def test_abort_in_flight_keeps_pages_and_request_index_until_plans_are_read() -> None:
    driver = certified(seqs=1, cache=False, speculation="off")
    number = driver.submit(PROMPT, 20)
    waiting = driver.submit(PROMPT, 3)
    (first,) = spans_of(driver.start(), number)
    driver.start()
    held = driver.scheduler.pool.num_held
    driver.note(driver.scheduler.abort(number))
    driver.read()
    assert driver.scheduler.pool.num_held == held and driver.scheduler.has_work
    (theirs,) = spans_of(driver.start(), waiting)
    assert theirs.request_index != first.request_index and not set(theirs.pages) & set(first.pages)
    driver.read()
    driver.scheduler.check()
    assert driver.scheduler.pool.num_held < held + 2
    driver.finish()
    assert driver.answers[number] == []
    assert driver.answers[waiting] == truth(PROMPT, 3)


def test_stop_string_discards_results_in_flight() -> None:
    driver = certified(speculation="off")
    number = driver.submit(PROMPT, 20, stop_at=4)
    driver.finish()
    assert driver.answers[number] == truth(PROMPT, 4)
    assert driver.runner.num_started == 5, "one plan was under way when the end was read"


def test_failure_ends_only_requests_in_flight() -> None:
    driver = certified(seqs=2, speculation="off")
    running = [driver.submit(PROMPT, 20), driver.submit((3,), 20)]
    waiting = driver.submit((2, 2), 4)
    first = driver.start()
    driver.start()
    events = driver.note(driver.scheduler.fail(first, "the pass broke"))
    driver.in_flight.clear()
    driver.runner._unread.clear()
    assert {event.request_id for event in events} == set(running)  # type: ignore[union-attr]
    assert not driver.scheduler._in_flight
    driver.scheduler.check()
    driver.finish()
    assert driver.answers[waiting] == truth((2, 2), 4)


def test_plans_must_be_read_in_order() -> None:
    driver = certified()
    driver.submit(PROMPT, 20)
    driver.start()
    second = driver.start()
    with pytest.raises(AssertionError, match="in the order they were made"):
        driver.scheduler.update(second, [])


def test_repeating_request_skips_a_pass_to_draft() -> None:
    driver = certified(seqs=4)
    copies = driver.submit((COPIES, 2, 1, 3, 1), 60)
    driver.finish()
    stats = driver.ended[copies].stats
    assert driver.answers[copies] == truth((COPIES, 2, 1, 3, 1), 60)
    assert stats.looked_up > 0
    assert driver.runner.num_started < 50
    other = certified(seqs=4)
    plain = other.submit(PROMPT, 60)
    other.finish()
    assert other.ended[plain].stats.looked_up == 0
    assert other.runner.num_ahead == 59, "text without repetition costs nothing"


@pytest.mark.parametrize(
    ("chance", "guesses", "worth"),
    [(0.5, 31, False), (0.6, 3, True), (0.9, 1, False), (1.0, 2, True), (1.0, 1, False)],
)
def test_waiting_is_worth_more_than_two_tokens(chance: float, guesses: int, worth: bool) -> None:
    assert is_worth_waiting(chance, guesses) is worth


def test_revocation_discards_results_in_flight_but_not_of_ordinary_requests() -> None:
    driver = certified(speculation="off")
    sworn, ordinary = driver.submit(PROMPT, 12), driver.submit((1, 1), 12, deterministic=False)
    for _ in range(5):
        driver.step()
    (old_span,) = spans_of(driver.in_flight[0][0], sworn)
    driver.scheduler._revoke()
    driver.scheduler.check()
    again = next(state for state in driver.scheduler.requests if state.request_id == sworn)
    assert not again.in_flight.spans and not again.in_flight.pop(old_span), "its result is discarded"
    assert not driver.start(), "nothing is planned before the plans made with the certificate are read"
    num_before = len(driver.answers[ordinary])
    driver.read()
    assert len(driver.answers[ordinary]) == num_before + 1
    assert driver.scheduler.prefix_cache.num_pages == 0
    other = driver.submit((2, 2), 2, deterministic=False)
    driver.finish()
    assert driver.answers[sworn] == truth(PROMPT, 12)
    assert driver.ended[sworn].determinism == "verified"
    assert driver.answers[ordinary] == truth((1, 1), 12) and driver.answers[other] == truth((2, 2), 2)
    first_page = (1, 1, *truth((1, 1), 2))
    assert first_page not in driver.scheduler.prefix_cache.root.children, (
        "its pages were computed under the certificate"
    )


def test_only_the_oldest_span_in_flight_is_popped() -> None:
    driver = certified(speculation="off")
    number = driver.submit(PROMPT, 12)
    (first,), (second,) = spans_of(driver.start(), number), spans_of(driver.start(), number)
    state = driver.state(number)
    assert not state.in_flight.pop(second) and state.in_flight.spans == [first, second]
    assert state.in_flight.pop(first) and state.in_flight.spans == [second]
