"""Admission: while pages are short, and while another request computes pages that a waiting one needs."""

import gc
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.core.events import PromptScored
from holdfast.core.sent import Sent
from holdfast.core.shares import Share
from holdfast.core.step_plan import PassKind
from holdfast.kv_cache.prefix_cache import PrefixCursor
from holdfast.scheduler.policy import DeterminismMode
from protocol.scripted import reference_scores
from scheduler.driver import PAGE_SIZE, ROWS, Driver, spans_of, truth

PREFIX = tuple(n % 3 + 1 for n in range(4 * PAGE_SIZE))
LONG = tuple(n * n % 3 + 1 for n in range(200 * PAGE_SIZE))
EVERY_SIZE = tuple(range(1, 65))


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Counter[PrefixCursor]:
    """How many pages each request looked up in the prefix cache."""
    counts: Counter[PrefixCursor] = Counter()
    key = PrefixCursor._key

    def counted(cursor: PrefixCursor, tokens: Sequence[int], stop: int) -> tuple[int | str, ...]:
        counts[cursor] += 1
        return key(cursor, tokens, stop)

    monkeypatch.setattr(PrefixCursor, "_key", counted)
    return counts


def num_computed(driver: Driver, *numbers: int) -> int:
    """The tokens that passes computed, of these requests or of all."""
    return sum(
        span.num_tokens
        for one in driver.runner.passes
        if one.kind is not PassKind.CHECK
        for span in one.spans
        if not numbers or span.request_id in numbers
    )


# Pages are short


def waiting_driver() -> tuple[Driver, int, int]:
    """One request runs, and another with the same prefix waits for pages. The prefix is in the cache."""
    driver = Driver("auto", certified=EVERY_SIZE, num_pages=13, seqs=4, speculation="off")
    driver.submit((*PREFIX, 7), 1)
    driver.finish()
    running = driver.submit((3, 1) * 10, 10)
    driver.step()
    waiting = driver.submit((*PREFIX, 7, 7, *(8,) * 12), 2)
    return driver, running, waiting


def test_a_request_that_waits_for_pages_looks_them_up_once(keys: Counter[PrefixCursor]) -> None:
    driver, running, waiting = waiting_driver()
    (state,) = driver.scheduler._queue.waiting
    num_looked_up = []
    while driver.scheduler.num_waiting:
        keys.clear()
        driver.step()
        num_looked_up.append(keys[state.prefix_cursor])
    assert len(num_looked_up) > 5
    assert num_looked_up[0] <= 4 + 2  # its four pages, and twice whether there is another one
    assert max(num_looked_up[1:-1]) <= 2
    driver.finish()
    assert driver.ended[waiting].stats.cached_tokens == len(PREFIX)
    assert driver.answers[running] == truth((3, 1) * 10, 10)


def test_requests_of_several_tenants_that_wait_are_looked_up_once(keys: Counter[PrefixCursor]) -> None:
    driver, *_ = waiting_driver()
    for tenant in ("b", "c"):
        driver.submit((*PREFIX, 7, 7, *(8,) * 12), 2, scope={"share": Share(tenant)})
    driver.step()
    for _ in range(4):
        keys.clear()
        driver.step()
        assert driver.scheduler.num_waiting == 3 and max(keys.values()) <= 2


def test_those_that_wait_do_not_keep_an_ended_request_alive() -> None:
    driver = Driver("auto", certified=EVERY_SIZE, num_pages=400, speculation="off")
    leader, *others = lead(driver)
    ended = weakref.ref(driver.state(leader))
    assert driver.scheduler.num_waiting
    driver.note(driver.scheduler.abort(leader))
    gc.collect()
    assert ended() is None and leader in driver.ended
    driver.finish()
    assert set(others) <= set(driver.ended)


def test_a_waiting_request_does_without_pages_that_are_forgotten() -> None:
    driver, _, waiting = waiting_driver()
    driver.step()
    assert driver.scheduler.num_waiting == 1
    driver.scheduler.prefix_cache.clear()
    driver.finish()
    assert driver.ended[waiting].stats.cached_tokens == 0


# Pages that another request computes


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("mode", "deterministic"),
    [("auto", True), ("auto", False), ("verify", True), ("verify", False), ("off", False)],
)
def test_a_prefix_that_many_requests_share_is_computed_once(
    mode: DeterminismMode, deterministic: bool, is_async: bool
) -> None:
    """The prefix is longer than a pass, all arrive at once, and not all have a place."""
    driver = Driver(
        mode,
        certified=EVERY_SIZE,
        num_pages=900,
        seqs=40,
        rows=64,
        async_scheduling=is_async,
        speculation="off",
    )
    prompts = [(*LONG, number // 7 + 1, number % 7 + 1, 4, 4) for number in range(64)]
    for prompt in prompts:
        driver.submit(prompt, 1, deterministic=deterministic)
    driver.finish()
    # The last token of a prompt is computed in any case, and so are the tokens before it in its page.
    assert num_computed(driver) == len(LONG) + len(prompts) * 4
    assert [driver.answers[number] for number in range(64)] == [truth(prompt, 1) for prompt in prompts]


def test_a_request_that_waited_leads_its_own_group() -> None:
    """All share 40 tokens, each of three groups 40 more, each pair 20 more."""
    driver = Driver("auto", certified=EVERY_SIZE, num_pages=400, seqs=24, rows=64, speculation="off")
    for number in range(24):
        group, pair = number % 3, number % 12
        shared = (*LONG[:40], *(group + 5,) * 40, *(pair + 10,) * 20)
        driver.submit((*shared, number + 22, 1, 1, 1), 1)
    driver.finish()
    assert num_computed(driver) == 40 + 3 * 40 + 12 * 20 + 24 * 4


def test_answers_to_one_prompt_share_it() -> None:
    driver = Driver(seqs=4)
    for _ in range(4):
        driver.submit(LONG[:41], 3)
    driver.finish()
    assert [driver.ended[number].stats.cached_tokens for number in range(4)] == [0, 40, 40, 40]


def test_resumed_request_that_is_aborted_while_it_waits_is_forgotten() -> None:
    driver = Driver(seqs=1)
    driver.submit(PREFIX, 20)
    sent = Sent(array("i", (7,)), array("f", (-1.0,)))
    waiting = driver.submit(PREFIX, 20, scope={"sent": (sent,)})
    driver.step()
    assert driver.scheduler._queue.confirming == {waiting}
    assert driver.scheduler.abort(waiting) and not driver.scheduler._queue.confirming
    driver.finish()


def test_scored_prompts_share_what_comes_before_the_scores() -> None:
    driver = Driver("auto", certified=EVERY_SIZE, num_pages=200, seqs=8, speculation="off")
    for number in range(6):
        driver.submit((*LONG[:60], number, 1, 2, 3), 0, prompt_logprobs=0, scope={"read_len": 60})
    driver.finish()
    # A prompt's last token needs no logits. The logits that give the first score are those of position 59,
    # which is computed again.
    assert num_computed(driver) == 63 + 5 * 4
    scores = {event.request_id: event.logprobs for event in driver.others if isinstance(event, PromptScored)}
    assert [[one.token_id for one in scores[number]] for number in range(6)] == [
        [number, 1, 2, 3] for number in range(6)
    ]


@pytest.mark.parametrize("deterministic", [True, False])
def test_prompts_with_logprobs_share_pages_that_have_them(deterministic: bool) -> None:
    driver = Driver("auto", certified=EVERY_SIZE, num_pages=400, seqs=8, speculation="off")

    def computed(num_top: int, *tails: tuple[int, ...], max_tokens: int = 0) -> int:
        """How many tokens passes computed for prompts that end so, at once."""
        before = num_computed(driver)
        wanted = {"deterministic": deterministic, "prompt_logprobs": num_top}
        sent = {driver.submit((*LONG[:60], *tail), max_tokens, **wanted): tail for tail in tails}
        driver.finish()
        for number, tail in sent.items():
            events = (one for one in driver.others if isinstance(one, PromptScored))
            found = [each for one in events if one.request_id == number for each in one.logprobs]
            assert found == reference_scores((*LONG[:60], *tail), 1)
        return num_computed(driver) - before

    tails = [(number, 1, 2, 3) for number in range(6)]
    assert computed(2, *tails) == 63 + 5 * 4  # a tail, and the last token of the page before it
    assert computed(1, *tails) == 6 * 4
    assert computed(3, *tails) == 63 + 5 * 4  # more alternatives than are kept
    assert computed(3, (7,)) == 1 and computed(3, (7,), max_tokens=3) == 1 + 3
    assert computed(0, LONG[60:]) == len(LONG) - 60


def test_few_shared_tokens_are_not_waited_for_until_many_share_them() -> None:
    """One page is half of a reference pass: the second request that shares it waits."""
    assert 2 * PAGE_SIZE == ROWS
    driver = Driver(seqs=4)
    numbers = [driver.submit((*LONG[:PAGE_SIZE], number + 4, 9, 9)) for number in range(4)]
    plan = driver.plan()
    assert [bool(spans_of(plan, number)) for number in numbers] == [True, True, False, False]
    driver.update(plan)
    plan = driver.plan()
    assert all(spans_of(plan, number) for number in numbers[2:])


@pytest.mark.parametrize(("is_async", "num_pages"), [(False, 2), (True, 2), (True, 4)])
def test_with_async_scheduling_a_wait_takes_two_passes(is_async: bool, num_pages: int) -> None:
    """Two pages are as many tokens as a reference pass."""
    driver = Driver("auto", certified=EVERY_SIZE, async_scheduling=is_async, speculation="off")
    driver.submit((*LONG[: num_pages * PAGE_SIZE], 4, 9))
    second = driver.submit((*LONG[: num_pages * PAGE_SIZE], 5, 9))
    assert bool(spans_of(driver.plan(), second)) == (is_async and num_pages == 2)


@pytest.mark.parametrize("limits", [{"seqs": 3}, {"num_pages": 36}])
def test_a_place_and_pages_are_left_for_a_request_that_waits(limits: dict[str, int]) -> None:
    driver = Driver("auto", certified=EVERY_SIZE, rows=64, speculation="off", **limits)  # type: ignore[arg-type]
    leader = driver.submit((*LONG[:100], 1), 1)
    waiting = driver.submit((*LONG[:80], *(3,) * 20), 4)
    small = driver.submit((9, 9), 20)
    late = driver.submit((8,) * 18, 20)
    driver.step()
    assert set(driver.scheduler.running_ids) == {leader, small}
    driver.finish()
    assert driver.started == [leader, small, waiting, late]
    assert driver.ended[waiting].stats.cached_tokens == 80
    assert driver.ended[waiting].stats.preemptions == 0


def test_the_younger_are_not_let_past_a_tenants_limit() -> None:
    driver = Driver("auto", certified=EVERY_SIZE, num_pages=400, rows=64, seqs=8, speculation="off")
    numbers = [driver.submit((*LONG[:100], n), 1, scope={"share": Share(max_running=2)}) for n in (1, 2)]
    numbers += [driver.submit((9, 9, 9), 1, scope={"share": Share(max_running=2)})]
    plan = driver.plan()
    assert [bool(spans_of(plan, number)) for number in numbers] == [True, False, False]


def lead(driver: Driver) -> list[int]:
    """A leader after its first pass, and three that wait for it."""
    numbers = [driver.submit((*LONG[:100], number + 1, 3), 4) for number in range(4)]
    driver.step()
    assert driver.scheduler.num_waiting == 3
    return numbers


def end_by_abort(driver: Driver, leader: int) -> None:
    driver.note(driver.scheduler.abort(leader))


def end_by_failure(driver: Driver, leader: int) -> None:
    plan = driver.in_flight[-1][0] if driver.in_flight else driver.plan()
    driver.note(driver.scheduler.fail(plan, "the pass broke"))
    driver.in_flight.clear()
    driver.runner.forget_unread()


def end_by_preemption(driver: Driver, leader: int) -> None:
    while driver.in_flight:
        driver.read()
    driver.scheduler._queue._preempt(driver.state(leader), in_flight=False)


def end_by_revocation(driver: Driver, leader: int) -> None:
    driver.scheduler._revoke()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("end", [end_by_abort, end_by_failure, end_by_preemption, end_by_revocation])
def test_the_next_oldest_leads_if_the_leader_ends(end: Callable[[Driver, int], None], is_async: bool) -> None:
    driver = Driver(
        "auto", certified=EVERY_SIZE, num_pages=400, seqs=6, speculation="off", async_scheduling=is_async
    )
    leader, *others = lead(driver)
    end(driver, leader)
    driver.scheduler.check()
    num_before = num_computed(driver)
    restarts = end in (end_by_preemption, end_by_revocation)
    driver.finish()
    for number in [leader, *others] if restarts else others:
        assert driver.answers[number] == truth((*LONG[:100], number + 1, 3), 4)
    # What the leader had computed by then is of use unless it is not trusted; the rest is computed once.
    assert num_computed(driver) - num_before <= 102 + 4 * (2 + 4) + (
        2 * ROWS if end is end_by_revocation else 0
    )


def test_a_step_does_not_look_at_prompts_again(keys: Counter[PrefixCursor], monkeypatch: Any) -> None:
    """400 wait for one; each reads its prompt when it is first looked at and when it starts."""
    driver = Driver(
        "auto", certified=tuple(range(1, 513)), num_pages=3000, seqs=500, rows=512, speculation="off"
    )
    matched: list[int] = []
    match = PrefixCursor.match

    def counted(cursor: PrefixCursor, token_ids: Sequence[int], scored_len: int | None) -> Any:
        matched.append(len(token_ids))
        return match(cursor, token_ids, scored_len)

    monkeypatch.setattr(PrefixCursor, "match", counted)
    num_pages = len(LONG) // PAGE_SIZE
    for number in range(401):
        driver.submit((*LONG, number % 50, number // 50, 1), 1)
    driver.step()
    assert len(matched) <= 2 + 400 and driver.scheduler.num_waiting == 400
    matched.clear()
    while driver.scheduler.num_waiting == 400:
        assert not matched
        driver.step()
    driver.finish()
    assert len(matched) <= 2 * 400
    assert max(keys.values()) <= 2 * num_pages + 4


def test_logprobs_of_fast_passes_are_kept_with_no_canonical_page() -> None:
    driver = Driver("verify", num_pages=200)
    number = driver.submit(LONG[:400], 0, deterministic=False, prompt_logprobs=0)
    driver.step()
    state = driver.scheduler._queue.running[number]
    assert state.scores and state.has_fast_scores
    assert state._page_logprobs(0, PAGE_SIZE) is not None
    state.canonical_len = PAGE_SIZE
    assert state._page_logprobs(0, PAGE_SIZE) is None
