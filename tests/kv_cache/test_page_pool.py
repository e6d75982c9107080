"""Pages change hands one at a time, and `check` sees every mistake."""

import pytest

from holdfast.errors import ConfigError
from holdfast.kv_cache.page_pool import PagePool


@pytest.mark.parametrize(("pages", "size"), [(0, 4), (4, 0), (-1, 4)])
def test_an_empty_pool_is_refused(pages: int, size: int) -> None:
    with pytest.raises(ConfigError, match="at least one page"):
        PagePool(pages, size)


def test_take_returns_the_lowest_page_first() -> None:
    pool = PagePool(3, 4)
    assert [pool.take(), pool.take()] == [0, 1]
    assert (pool.num_available, pool.num_held) == (1, 2)
    pool.check({0: 1, 1: 1})


@pytest.mark.parametrize(("length", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_pages_for_a_length(length: int, pages: int) -> None:
    assert PagePool(9, 4).pages_for(length) == pages


def test_page_is_free_after_its_last_holder_drops_it() -> None:
    pool = PagePool(1, 4)
    page = pool.take()
    pool.hold(page)
    pool.drop(page)
    assert pool.num_available == 0
    pool.drop(page)
    assert pool.num_available == 1
    with pytest.raises(AssertionError, match="more often than held"):
        pool.drop(page)


def test_idle_pages_are_evicted_least_recently_used_first() -> None:
    pool = PagePool(3, 4)
    evicted: list[int] = []
    pool.on_evict = evicted.append
    pages = [pool.take() for _ in range(3)]
    for page in pages:
        pool.mark_cached(page)
    for page in (1, 0, 2):
        pool.drop(page)
    pool.hold(1)  # asked for again, so it is the most recent when it is dropped
    pool.drop(1)
    assert pool.num_available == 3
    assert [pool.take() for _ in range(3)] == evicted == [0, 2, 1]
    with pytest.raises(AssertionError, match="num_available"):
        pool.take()


def test_free_pages_are_taken_before_idle_ones() -> None:
    pool = PagePool(2, 4)
    kept = pool.take()
    pool.mark_cached(kept)
    pool.drop(kept)
    assert pool.take() != kept
    assert pool.is_cached(kept)


def test_idle_page_that_leaves_the_cache_is_free() -> None:
    pool = PagePool(1, 4)
    page = pool.take()
    pool.mark_cached(page)
    pool.drop(page)
    pool.unmark_cached(page)
    pool.check({})
    assert not pool.is_cached(page)
    assert pool.take() == page


def test_check_finds_a_leak_and_a_wrong_count() -> None:
    pool = PagePool(2, 4)
    page = pool.take()
    with pytest.raises(AssertionError, match="counts 1 holders, has 0"):
        pool.check({})
    with pytest.raises(AssertionError, match="counts 1 holders, has 2"):
        pool.check({page: 2})
    pool._free.append(page)
    with pytest.raises(AssertionError, match="2 states"):
        pool.check({page: 1})
