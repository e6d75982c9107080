"""Chains of full pages: found again, evicted, announced, and fast pages kept from deterministic requests."""

from collections.abc import Sequence

import pytest

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixCursor, PrefixMatch, PrefixNode

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


def match_in(
    cache: PrefixCache,
    token_ids: Sequence[int],
    *,
    canonical_only: bool,
    size: int = 2,
    salt: str = "",
) -> PrefixMatch:
    """The match of a new request."""
    return PrefixCursor(cache, size, salt, canonical_only=canonical_only).match(token_ids)


def found(cache: PrefixCache, *token_ids: int, canonical_only: bool) -> tuple[tuple[int, ...], int]:
    """The pages of the match, and how many leading ones are canonical."""
    match = match_in(cache, token_ids, canonical_only=canonical_only)
    return match.pages, match.num_canonical


def test_only_full_pages_match(pool: PagePool, cache: PrefixCache) -> None:
    pages, node = add(pool, cache, A, B)
    assert found(cache, *A, *B, 9, canonical_only=True) == (pages, 2)
    assert match_in(cache, [*A, *B, 9], canonical_only=True).node is node
    assert found(cache, *A, 3, canonical_only=True) == (pages[:1], 1)
    assert match_in(cache, [1], canonical_only=True).node is cache.root
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
    restored = cache.root.children[A].children[B].children[C].canonical
    assert restored is not None and restored.number == page


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


# A request that waits


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the pages end that were looked up."""
    stops: list[int] = []
    key = PrefixCursor._key

    def counted(cursor: PrefixCursor, tokens: Sequence[int], stop: int) -> tuple[int | str, ...]:
        stops.append(stop)
        return key(cursor, tokens, stop)

    monkeypatch.setattr(PrefixCursor, "_key", counted)
    return stops


def test_a_page_is_looked_up_once_however_often_its_request_is_matched(
    pool: PagePool, cache: PrefixCache, keys: list[int]
) -> None:
    pages, node = add(pool, cache, A, B)
    cursor, prompt = PrefixCursor(cache, 2), (*A, *B, *C, 9)
    assert [cursor.match(prompt).pages for _ in range(3)] == [pages] * 3
    assert keys == [2, 4, 6, 6, 6]
    keys.clear()
    more = pool.take()
    cache.insert(node, C, more, canonical=True)
    match = cursor.match(prompt)
    assert (match.pages, match.num_canonical, keys) == ((*pages, more), 3, [6])
    keys.clear()
    assert cursor.match(prompt).pages == (*pages, more) and not keys


def test_a_request_that_waits_finds_what_came_and_went(pool: PagePool, cache: PrefixCache) -> None:
    fast, node = add(pool, cache, A, B, canonical=False)
    cursor, prompt = PrefixCursor(cache, 2), (*A, *B, *C, 9)
    assert cursor.match(prompt).pages == fast
    canonical, _ = add(pool, cache, A)
    assert cursor.match(prompt).pages == (canonical[0], fast[1])
    assert cursor.match(prompt).num_canonical == 1
    pool.drop(fast[1])
    for _ in range(pool.num_available):
        pool.take()
    assert cursor.match(prompt).pages == canonical and not node.is_attached
    cache.clear()
    assert cursor.match(prompt).pages == ()
    pool.drop(canonical[0])
    again = pool.take()
    cache.insert(cache.root, A, again, canonical=True)
    assert cursor.match(prompt).pages == (again,)


def test_a_request_that_restarts_forgets_the_nodes_of_its_tokens(pool: PagePool, cache: PrefixCache) -> None:
    """Its tokens may be others then."""
    one, other = add(pool, cache, A, B)[0], add(pool, cache, A, C)[0]
    cursor = PrefixCursor(cache, 2)
    assert cursor.match((*A, *B)).pages == one
    cursor.reset()
    assert cursor.match((*A, *C)).pages == (one[0], other[1])


# Announced pages


def lead(
    cache: PrefixCache, number: int, length: int, *, canonical_only: bool = True, holder: str = ""
) -> tuple[PrefixCursor, PageTable]:
    """A request that starts with a prompt of IDS."""
    cursor = PrefixCursor(cache, 2, canonical_only=canonical_only, holder=holder, number=number)
    match, table = cursor.match(IDS[:length]), PageTable(cache._pool)
    for page in match.pages:
        cache._pool.hold(page)
    table.adopt(match.pages)
    table.grow(length)
    cursor.move_to(match.node, len(match.pages))
    cursor.announce(length, ids)
    cache.check()
    return cursor, table


def publish(leader: tuple[PrefixCursor, PageTable], length: int, canonical_len: int | None = None) -> None:
    cursor, table = leader
    canonical_len = length if canonical_len is None else canonical_len
    cursor.extend(length, canonical_len=canonical_len, page_table=table, tokens=ids, extra=None)
    cursor._prefix_cache.check()


def test_a_younger_request_finds_who_computes_its_pages(cache: PrefixCache) -> None:
    leader = lead(cache, 1, 9)
    younger = PrefixCursor(cache, 2, canonical_only=True, number=2)
    match = younger.match((*IDS[:6], 7, 7))
    assert (match.pages, match.leader, match.leader_len) == ((), leader[0], 6)
    assert match.is_coming
    publish(leader, 4)
    assert match.is_coming
    now = younger.match((*IDS[:6], 7, 7))
    assert (now.pages, now.leader, now.leader_len) == (leader[1].pages[:2], leader[0], 6)
    publish(leader, 9)
    assert not match.is_coming and not now.is_coming
    done = younger.match((*IDS[:6], 7, 7))
    assert (done.pages, done.leader) == (leader[1].pages[:3], None)


@pytest.mark.parametrize("how", ["reset", "close", "withdraw"])
def test_a_leader_that_stops_leaves_nothing_behind(cache: PrefixCache, how: str) -> None:
    leader = lead(cache, 1, 9)
    publish(leader, 3)
    match = PrefixCursor(cache, 2, canonical_only=True, number=2).match(IDS)
    assert match.is_coming
    getattr(leader[0], how)()
    assert not match.is_coming
    cache.check()
    assert PrefixCursor(cache, 2, canonical_only=True, number=2).match(IDS).leader is None
    assert cache.root.children[IDS[:2]].children == {}
    leader[1].release()
    cache.clear()
    assert cache.root.children == {}


def test_a_closed_cursor_announces_nothing(cache: PrefixCache) -> None:
    cursor, _ = lead(cache, 1, 4)
    cursor.close()
    cursor.announce(4, ids)
    assert cache.root.children == {}


def test_whom_a_request_may_wait_for(cache: PrefixCache) -> None:
    ordinary = lead(cache, 5, 4, canonical_only=False, holder="a")

    def leader_of(number: int, *, canonical_only: bool, holder: str = "a", salt: str = "") -> object:
        cursor = PrefixCursor(cache, 2, salt, canonical_only=canonical_only, holder=holder, number=number)
        return cursor.match(IDS).leader

    assert leader_of(6, canonical_only=False) is ordinary[0]
    assert leader_of(4, canonical_only=False) is None  # older
    assert leader_of(6, canonical_only=True) is None  # may not read fast pages
    assert leader_of(6, canonical_only=False, holder="b") is None
    assert leader_of(6, canonical_only=False, salt="s") is None
    deterministic = lead(cache, 7, 6, holder="a")
    assert leader_of(8, canonical_only=True) is leader_of(8, canonical_only=False) is deterministic[0]
    publish(ordinary, 4, canonical_len=0)
    assert leader_of(8, canonical_only=True) is deterministic[0]
    publish(deterministic, 6)
    assert leader_of(8, canonical_only=True) is None


def test_the_deepest_leader_is_found_behind_one_that_ended(cache: PrefixCache) -> None:
    first, second = lead(cache, 1, 4), lead(cache, 2, 8)
    waiting = PrefixCursor(cache, 2, canonical_only=True, number=3)
    assert (waiting.match(IDS).leader, waiting.match(IDS).leader_len) == (second[0], 8)
    first[0].reset()
    cache.check()
    assert (waiting.match(IDS).leader, waiting.match(IDS).leader_len) == (second[0], 8)


def test_nobody_waits_for_a_leader_that_is_behind(cache: PrefixCache) -> None:
    """Pages that another one added are in the cache; the leader would compute them before it is of use."""
    lead(cache, 1, 8)
    other = lead(cache, 2, 6)
    publish(other, 6)
    match = PrefixCursor(cache, 2, canonical_only=True, number=3).match(IDS)
    assert (match.pages, match.leader) == (other[1].pages, None)


def test_nodes_are_added_when_somebody_asks(cache: PrefixCache, keys: list[int]) -> None:
    leader, table = lead(cache, 1, 16)
    assert keys == [2, 2]  # its own match, and its first page
    keys.clear()
    waiting = PrefixCursor(cache, 2, canonical_only=True, number=2)
    assert waiting.match((*IDS[:4], 7, 7)).leader_len == 4
    assert sorted(keys) == [2, 4, 4, 6, 6]
    keys.clear()
    publish((leader, table), 10)
    assert keys == [2, 4, 6, 8, 10, 12]
    assert PrefixCursor(cache, 2, canonical_only=True, number=2).match(IDS).leader_len == 16


def test_a_deterministic_leader_takes_over_from_an_ordinary_one(cache: PrefixCache) -> None:
    ordinary = lead(cache, 1, 8, canonical_only=False)
    assert PrefixCursor(cache, 2, number=2).match(IDS).leader is ordinary[0]
    deterministic = lead(cache, 3, 6)
    for canonical_only in (False, True):
        match = PrefixCursor(cache, 2, canonical_only=canonical_only, number=4).match(IDS[:7])
        assert (match.leader, match.leader_len) == (deterministic[0], 6)
    deterministic[0].reset()
    cache.check()
    publish(ordinary, 6, canonical_len=0)
    match = PrefixCursor(cache, 2, number=4).match(IDS)
    assert (len(match.pages), match.leader, match.leader_len) == (3, ordinary[0], 8)


def test_pages_in_the_cache_are_not_announced(pool: PagePool, cache: PrefixCache) -> None:
    """Those after an evicted one."""
    pages, _ = add(pool, cache, IDS[:2], IDS[2:4], IDS[4:6])  # type: ignore[arg-type]
    pool.drop(pages[0])
    for page in [pool.take() for _ in range(pool.num_available)]:  # evicts the first page
        pool.drop(page)
    assert match_in(cache, IDS, canonical_only=True).pages == ()
    leader, table = lead(cache, 1, 6)
    match = PrefixCursor(cache, 2, canonical_only=True, number=2).match(IDS)
    assert (match.leader, match.leader_len) == (leader, 2)
    publish((leader, table), 2)
    assert not match.is_coming
    assert len(match_in(cache, IDS, canonical_only=True).pages) == 3


# Cursors


def ids(start: int, stop: int) -> tuple[int, ...]:
    return IDS[start:stop]


def extra(start: int, stop: int) -> tuple[int, int]:
    return start, stop


def test_a_cursor_adds_full_pages_with_their_extra() -> None:
    pool = PagePool(8, 4)
    cache, table = PrefixCache(pool), PageTable(pool)
    table.grow(14)
    cursor = PrefixCursor(cache, 4)
    cursor.extend(3, canonical_len=3, page_table=table, tokens=ids, extra=extra)
    assert (cache.num_pages, cursor.next_len) == (0, 4)
    cursor.extend(13, canonical_len=8, page_table=table, tokens=ids, extra=extra)
    assert (cache.num_pages, cursor.next_len) == (3, 16)
    canonical = match_in(cache, IDS, size=4, canonical_only=True)
    assert (canonical.pages, canonical.num_canonical) == (table.pages[:2], 2)
    assert [page.extra for page in canonical.cached] == [(0, 4), (4, 8)]
    both = match_in(cache, IDS, size=4, canonical_only=False)
    assert (both.pages, both.num_canonical) == (table.pages[:3], 2)
    assert [page.extra for page in both.cached] == [(0, 4), (4, 8), (8, 12)]
    other = PrefixCursor(cache, 4)
    other.move_to(both.node, 3)
    other.extend(16, canonical_len=16, page_table=table, tokens=ids, extra=None)
    assert match_in(cache, IDS, size=4, canonical_only=False).pages[3:] == (table.pages[3],)


def test_a_cursor_starts_again_after_reset_and_adds_nothing_after_close() -> None:
    pool = PagePool(8, 4)
    cache, table = PrefixCache(pool), PageTable(pool)
    table.grow(12)
    cursor = PrefixCursor(cache, 4)
    cursor.extend(4, canonical_len=4, page_table=table, tokens=ids, extra=None)
    cursor.reset()
    assert cursor.next_len == 4
    cursor.extend(8, canonical_len=8, page_table=table, tokens=ids, extra=None)
    assert cache.num_pages == 2
    cursor.close()
    cursor.extend(12, canonical_len=12, page_table=table, tokens=ids, extra=None)
    assert cache.num_pages == 2


def test_salt_separates_chains_and_leaves_nothing_behind(pool: PagePool, cache: PrefixCache) -> None:
    tables = {salt: PageTable(pool) for salt in ("", "a", "b")}
    for salt, table in tables.items():
        table.grow(4)
        PrefixCursor(cache, 2, salt).extend(
            4, canonical_len=4, page_table=table, tokens=lambda start, stop: IDS[start:stop], extra=None
        )
    for salt, table in tables.items():
        match = match_in(cache, IDS[:5], canonical_only=True, salt=salt)
        assert match.pages == tuple(table.pages)
    assert match_in(cache, IDS[:5], canonical_only=True, salt="c").pages == ()
    assert len(cache.root.children) == 3
    cache.check()
    cache.clear()
    assert not cache.root.children
