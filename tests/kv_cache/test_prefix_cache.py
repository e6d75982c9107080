"""Chains of full pages: found again, evicted, and fast pages kept from deterministic requests."""

import pytest

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixCursor, PrefixNode

A, B, C = (1, 2), (3, 4), (5, 6)
IDS = tuple(range(100, 120))


@pytest.fixture
def pool() -> PagePool:
    return PagePool(8, 2)


@pytest.fixture
def cache(pool: PagePool) -> PrefixCache:
    return PrefixCache(pool)


def add(
    pool: PagePool, cache: PrefixCache, *chain: tuple[int, int], canonical: bool = True
) -> tuple[tuple[int, ...], PrefixNode]:
    """A request that computed the chain itself and still holds its pages."""
    node, pages = cache.root, []
    for tokens in chain:
        pages.append(pool.take())
        node = cache.insert(node, tokens, pages[-1], canonical=canonical)
    return tuple(pages), node


def found(cache: PrefixCache, *token_ids: int, canonical_only: bool) -> tuple[tuple[int, ...], int]:
    """The pages of the match, and how many leading ones are canonical."""
    match = cache.match(token_ids, canonical_only=canonical_only)
    return match.pages, match.num_canonical


def test_only_full_pages_match(pool: PagePool, cache: PrefixCache) -> None:
    pages, node = add(pool, cache, A, B)
    assert found(cache, *A, *B, 9, canonical_only=True) == (pages, 2)
    assert cache.match([*A, *B, 9], canonical_only=True).node is node
    assert found(cache, *A, 3, canonical_only=True) == (pages[:1], 1)
    assert cache.match([1], canonical_only=True).node is cache.root
    assert found(cache, 9, *A, canonical_only=True) == ((), 0)
    pool.check(dict.fromkeys(pages, 1))
    cache.check()


def test_fast_pages_are_never_shown_to_deterministic_requests(pool: PagePool, cache: PrefixCache) -> None:
    fast, _ = add(pool, cache, A, B, canonical=False)
    assert found(cache, *A, *B, canonical_only=True) == ((), 0)
    assert found(cache, *A, *B, canonical_only=False) == (fast, 0)


def test_canonical_pages_are_preferred_and_leading_ones_counted(pool: PagePool, cache: PrefixCache) -> None:
    fast, _ = add(pool, cache, A, B, canonical=False)
    canonical, _ = add(pool, cache, A)
    assert found(cache, *A, *B, canonical_only=False) == ((canonical[0], fast[1]), 1)
    assert found(cache, *A, *B, canonical_only=True) == (canonical, 1)


def test_a_canonical_page_after_a_fast_one_does_not_count_as_canonical(
    pool: PagePool, cache: PrefixCache
) -> None:
    fast, node = add(pool, cache, A, canonical=False)
    page = pool.take()
    cache.insert(node, B, page, canonical=True)
    assert found(cache, *A, *B, canonical_only=False) == ((*fast, page), 0)
    assert found(cache, *A, *B, canonical_only=True) == ((), 0)


def test_insert_keeps_the_older_page(pool: PagePool, cache: PrefixCache) -> None:
    first, _ = add(pool, cache, A)
    second, _ = add(pool, cache, A)
    third, _ = add(pool, cache, A, canonical=False)
    assert cache.num_pages == 1
    assert not pool.is_cached(second[0])
    assert not pool.is_cached(third[0])
    assert found(cache, *A, canonical_only=True) == (first, 1)


def test_eviction_in_the_middle_keeps_the_node_while_it_has_children(
    pool: PagePool, cache: PrefixCache
) -> None:
    pages, _ = add(pool, cache, A, B)
    pool.drop(pages[0])  # the first page first, unlike `PageTable.release`
    pool.drop(pages[1])
    for _ in range(6):
        pool.take()
    assert pool.take() == pages[0]
    cache.check()
    assert found(cache, *A, *B, canonical_only=True) == ((), 0)
    assert pool.take() == pages[1]
    cache.check()
    assert cache.root.children == {}


def test_insert_after_a_removed_node_restores_the_chain(pool: PagePool, cache: PrefixCache) -> None:
    add(pool, cache, A)
    _, node = add(pool, cache, A, B)  # its first page is a duplicate, unknown to the cache
    cache.clear()
    assert cache.num_pages == 0
    page = pool.take()
    cache.insert(node, C, page, canonical=True)
    cache.check()
    assert cache.root.children[A].children[B].children[C].canonical == page


def test_clear_frees_idle_pages(pool: PagePool, cache: PrefixCache) -> None:
    pages, _ = add(pool, cache, A, B)
    pool.drop(pages[1])
    cache.clear()
    pool.check({pages[0]: 1})
    cache.check()


def test_check_finds_a_page_that_is_not_in_the_tree(pool: PagePool, cache: PrefixCache) -> None:
    add(pool, cache, A)
    del cache.root.children[A]
    with pytest.raises(AssertionError, match="not in its tree"):
        cache.check()


# Tracked matches


@pytest.mark.parametrize("canonical_only", [True, False])
def test_a_tracked_match_stays_current_while_other_pages_come_and_go(
    pool: PagePool, cache: PrefixCache, canonical_only: bool
) -> None:
    add(pool, cache, A)
    match = cache.match([*A, *B, *C], canonical_only=canonical_only)
    assert not cache.is_current(match)
    cache.track(match)
    others, _ = add(pool, cache, C, B, A)
    add(pool, cache, A, C)
    assert cache.is_current(match)
    pool.drop(others[2])
    for _ in range(pool.num_available):
        pool.take()
    assert not pool.is_cached(others[2]) and cache.is_current(match)


def test_an_extension_an_upgrade_and_an_eviction_end_a_tracked_match(
    pool: PagePool, cache: PrefixCache
) -> None:
    fast, node = add(pool, cache, A, canonical=False)

    def track() -> None:
        match = cache.match([*A, *B], canonical_only=False)
        cache.track(match)
        assert cache.is_current(match)
        tracked.append(match)

    tracked: list[object] = []
    track()
    extension = pool.take()
    cache.insert(node, B, extension, canonical=False)
    assert not cache.is_current(tracked[-1])  # type: ignore[arg-type]
    track()
    canonical, _ = add(pool, cache, A)
    assert not cache.is_current(tracked[-1])  # type: ignore[arg-type]
    track()
    pool.drop(extension)
    for _ in range(pool.num_available):
        pool.take()
    assert not cache.is_current(tracked[-1])  # type: ignore[arg-type]
    assert found(cache, *A, *B, canonical_only=False) == (canonical, 1) and fast
    track()
    cache.clear()
    assert not cache.is_current(tracked[-1])  # type: ignore[arg-type]


# Cursors


def ids(start: int, stop: int) -> tuple[int, ...]:
    return IDS[start:stop]


def thoughts(start: int, stop: int) -> tuple[tuple[int, ...], ...]:
    return tuple((chunk,) for chunk in range(start // 2, stop // 2))


def test_a_cursor_adds_full_pages_with_their_thoughts() -> None:
    pool = PagePool(8, 4)
    cache, table = PrefixCache(pool), PageTable(pool)
    table.grow(14)
    cursor = PrefixCursor(cache, 4)
    cursor.extend(3, canonical_len=3, page_table=table, tokens=ids, thoughts=thoughts)
    assert (cache.num_pages, cursor.next_len) == (0, 4)
    cursor.extend(13, canonical_len=8, page_table=table, tokens=ids, thoughts=thoughts)
    assert (cache.num_pages, cursor.next_len) == (3, 16)
    canonical = cache.match(IDS, canonical_only=True)
    assert (canonical.pages, canonical.num_canonical) == (table.pages[:2], 2)
    assert canonical.thoughts == [(0,), (1,), (2,), (3,)]
    both = cache.match(IDS, canonical_only=False)
    assert (both.pages, both.num_canonical) == (table.pages[:3], 2)
    assert both.thoughts == [(chunk,) for chunk in range(6)]
    other = PrefixCursor(cache, 4)
    other.move_to(both.node, 3)
    other.extend(16, canonical_len=16, page_table=table, tokens=ids, thoughts=None)
    assert cache.match(IDS, canonical_only=False).pages[3:] == (table.pages[3],)


def test_a_cursor_starts_again_after_reset_and_adds_nothing_after_close() -> None:
    pool = PagePool(8, 4)
    cache, table = PrefixCache(pool), PageTable(pool)
    table.grow(12)
    cursor = PrefixCursor(cache, 4)
    cursor.extend(4, canonical_len=4, page_table=table, tokens=ids, thoughts=None)
    cursor.reset()
    assert cursor.next_len == 4
    cursor.extend(8, canonical_len=8, page_table=table, tokens=ids, thoughts=None)
    assert cache.num_pages == 2
    cursor.close()
    cursor.extend(12, canonical_len=12, page_table=table, tokens=ids, thoughts=None)
    assert cache.num_pages == 2


def test_salt_separates_chains_and_leaves_nothing_behind(pool: PagePool, cache: PrefixCache) -> None:
    tables = {salt: PageTable(pool) for salt in ("", "a", "b")}
    for salt, table in tables.items():
        table.grow(4)
        PrefixCursor(cache, 2, salt).extend(
            4, canonical_len=4, page_table=table, tokens=lambda start, stop: IDS[start:stop], thoughts=None
        )
    for salt, table in tables.items():
        match = cache.match(IDS[:5], canonical_only=True, salt=salt)
        assert match.pages == tuple(table.pages)
    assert cache.match(IDS[:5], canonical_only=True, salt="c").pages == ()
    assert len(cache.root.children) == 3
    cache.check()
    cache.clear()
    assert not cache.root.children


def test_salt_begins_after_the_shared_pages(pool: PagePool, cache: PrefixCache) -> None:
    """Five of six tokens are shared: two pages of two. The third page is each salt's own."""
    held = {}
    for salt in ("a", "b"):
        match = cache.match(IDS[:6], canonical_only=True, salt=salt, shared_len=5)
        table = PageTable(pool)
        table.adopt(match.pages)
        table.grow(6)
        cursor = PrefixCursor(cache, 2, salt, 5)
        cursor.move_to(match.node, len(match.pages))
        cursor.extend(6, canonical_len=6, page_table=table, tokens=lambda a, b: IDS[a:b], thoughts=None)
        held[salt] = tuple(table[index] for index in range(3))
    assert held["a"][:2] == held["b"][:2] and held["a"][2] != held["b"][2]
    for salt, pages in held.items():
        assert cache.match(IDS[:6], canonical_only=True, salt=salt, shared_len=5).pages == pages
        assert cache.match(IDS[:6], canonical_only=True, salt=salt, shared_len=3).pages == pages[:1]
        assert cache.match(IDS[:6], canonical_only=True, salt=salt).pages == ()
    assert cache.match(IDS[:6], canonical_only=True, salt="c", shared_len=5).pages == held["a"][:2]
    cache.check()
