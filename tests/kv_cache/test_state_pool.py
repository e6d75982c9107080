"""Slots of recurrent states: who may take one, and what is given up for it."""

import pytest

from holdfast.errors import ConfigError
from holdfast.kv_cache.state_pool import StatePool


def keep(pool: StatePool, count: int) -> list[int]:
    slots = [pool.lend() for _ in range(count)]
    assert -1 not in slots
    return slots


def test_running_requests_always_get_a_slot() -> None:
    """What is kept is given up for them, the least recently used first; what is lent is not."""
    pool = StatePool(5, max_running=3)
    kept = [pool.keep(slot) for slot in keep(pool, 2)]
    lent = keep(pool, 2)
    assert pool.lend() == -1
    running = [pool.take() for _ in range(3)]
    assert [one.slot for one in kept] == [-1, -1]
    pool.check(running, lent, [])
    for slot in running:
        pool.drop(slot)
    for slot in lent:
        pool.give_back(slot)
    pool.check([], [], [])


def test_a_state_that_is_read_stays() -> None:
    pool = StatePool(3, max_running=2)
    kept = pool.keep(pool.lend())
    assert pool.read(kept) and pool.read(kept)
    running = [pool.take(), pool.take()]
    assert kept.slot not in running and pool.lend() == -1
    pool.check(running, [], [kept, kept])
    pool.forget(kept)  # its page is evicted meanwhile
    pool.end_read(kept)
    assert kept.slot >= 0
    pool.end_read(kept)
    assert kept.slot == -1 and not pool.read(kept)
    pool.check(running, [], [])


def test_a_lost_slot_is_found() -> None:
    pool = StatePool(2, max_running=1)
    pool.take()
    with pytest.raises(AssertionError, match="leaked"):
        pool.check([], [], [])
    with pytest.raises(ConfigError):
        StatePool(1, max_running=2)
