"""Admission while pages are short: the match of the first waiting request is remembered."""

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixMatch
from scheduler.driver import PAGE_SIZE, Driver, truth

PREFIX = tuple(n % 3 + 1 for n in range(4 * PAGE_SIZE))


@pytest.fixture
def matches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths that were matched against the prefix cache."""
    lengths: list[int] = []
    match = PrefixCache.match

    def counted(cache: PrefixCache, token_ids: Sequence[int], **details: Any) -> PrefixMatch:
        lengths.append(len(token_ids))
        return match(cache, token_ids, **details)

    monkeypatch.setattr(PrefixCache, "match", counted)
    return lengths


def waiting_driver() -> tuple[Driver, int, int]:
    """One request runs, and another with the same prefix waits for pages. The prefix is in the cache."""
    driver = Driver("auto", certified=tuple(range(1, 65)), num_pages=13, seqs=4, speculation="off")
    driver.submit((*PREFIX, 7), 1)
    driver.finish()
    running = driver.submit((3, 1) * 10, 10)
    driver.step()
    waiting = driver.submit((*PREFIX, 7, 7, *(8,) * 12), 2)
    return driver, running, waiting


def test_a_request_that_waits_for_pages_is_matched_once(matches: list[int]) -> None:
    driver, running, waiting = waiting_driver()
    matches.clear()
    num_steps = 0
    while driver.scheduler.num_waiting:
        driver.step()
        num_steps += 1
    assert num_steps > 5
    assert matches.count(len(PREFIX) + 13) == 1
    driver.finish()
    assert driver.ended[waiting].stats.cached_tokens == len(PREFIX)
    assert driver.answers[running] == truth((3, 1) * 10, 10)


def test_a_waiting_request_is_matched_again_when_its_pages_are_forgotten(matches: list[int]) -> None:
    driver, _, waiting = waiting_driver()
    driver.step()
    assert driver.scheduler.num_waiting == 1
    driver.scheduler.prefix_cache.clear()
    matches.clear()
    driver.step()
    assert matches == [len(PREFIX) + 13]
    driver.finish()
    assert driver.ended[waiting].stats.cached_tokens == 0
