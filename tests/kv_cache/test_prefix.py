"""Chains of full pages: found again, evicted, and never the wrong name space."""

import pytest

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixNode

A, B, C = (1, 2), (3, 4), (5, 6)


@pytest.fixture
def pool() -> PagePool:
    return PagePool(8, 2)


@pytest.fixture
def index(pool: PagePool) -> PrefixCache:
    return PrefixCache(pool)


def add(
    pool: PagePool, index: PrefixCache, *chain: tuple[int, int], canonical: bool = True
) -> tuple[list[int], PrefixNode]:
    """A sequence that computed the chain itself and still holds its pages."""
    node, pages = index.root, []
    for tokens in chain:
        pages.append(pool.take())
        node = index.insert(node, tokens, pages[-1], canonical=canonical)
    return pages, node


def test_only_full_pages_match(pool: PagePool, index: PrefixCache) -> None:
    pages, node = add(pool, index, A, B)
    assert index.match([*A, *B, 9], canonical_only=True) == (pages, node, 2)
    assert index.match([*A, 3], canonical_only=True)[0] == pages[:1]
    assert index.match([1], canonical_only=True) == ([], index.root, 0)
    assert index.match([9, *A], canonical_only=True)[0] == []
    pool.check({pages[0]: 3, pages[1]: 2})
    index.check()


def test_fast_pages_are_never_shown_to_deterministic_requests(pool: PagePool, index: PrefixCache) -> None:
    fast, _ = add(pool, index, A, B, canonical=False)
    assert index.match([*A, *B], canonical_only=True) == ([], index.root, 0)
    pages, _, num_canonical = index.match([*A, *B], canonical_only=False)
    assert (pages, num_canonical) == (fast, 0)


def test_a_canonical_page_is_preferred_and_counted_from_the_front(pool: PagePool, index: PrefixCache) -> None:
    fast, _ = add(pool, index, A, B, canonical=False)
    canonical, _ = add(pool, index, A)
    pages, _, num_canonical = index.match([*A, *B], canonical_only=False)
    assert (pages, num_canonical) == ([canonical[0], fast[1]], 1)
    assert index.match([*A, *B], canonical_only=True)[0] == canonical


def test_a_canonical_page_behind_a_fast_one_is_not_canonical_for_its_reader(
    pool: PagePool, index: PrefixCache
) -> None:
    fast, node = add(pool, index, A, canonical=False)
    page = pool.take()
    index.insert(node, B, page, canonical=True)
    assert index.match([*A, *B], canonical_only=False) == ([*fast, page], node.children[B], 0)
    assert index.match([*A, *B], canonical_only=True)[0] == []


def test_the_older_page_stays(pool: PagePool, index: PrefixCache) -> None:
    first, _ = add(pool, index, A)
    second, _ = add(pool, index, A)
    third, _ = add(pool, index, A, canonical=False)
    assert index.num_pages == 1
    assert not pool.is_cached(second[0])
    assert not pool.is_cached(third[0])
    assert index.match(A, canonical_only=True)[0] == first


def test_an_evicted_middle_leaves_a_hollow_node(pool: PagePool, index: PrefixCache) -> None:
    pages, _ = add(pool, index, A, B)
    pool.drop(pages[0])  # the front first, against the habit of `PageTable.release`
    pool.drop(pages[1])
    for _ in range(6):
        pool.take()
    assert pool.take() == pages[0]
    index.check()
    assert index.match([*A, *B], canonical_only=True)[0] == []
    assert pool.take() == pages[1]
    index.check()
    assert index.root.children == {}


def test_a_sequence_goes_on_behind_a_node_the_tree_let_go(pool: PagePool, index: PrefixCache) -> None:
    add(pool, index, A)
    _, node = add(pool, index, A, B)  # its first page is a duplicate, unknown to the index
    index.clear()
    assert index.num_pages == 0
    page = pool.take()
    index.insert(node, C, page, canonical=True)
    index.check()
    assert index.root.children[A].children[B].children[C].canonical == page


def test_clear_frees_idle_pages(pool: PagePool, index: PrefixCache) -> None:
    pages, _ = add(pool, index, A, B)
    pool.drop(pages[1])
    index.clear()
    pool.check({pages[0]: 1})
    index.check()


def test_check_finds_a_page_the_tree_does_not_hold(pool: PagePool, index: PrefixCache) -> None:
    add(pool, index, A)
    del index.root.children[A]
    with pytest.raises(AssertionError, match="its tree does not hold"):
        index.check()
