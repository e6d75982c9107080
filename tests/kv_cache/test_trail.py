"""A sequence's pages become known one behind the other, each once, with what was thought behind its chunks."""

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixCursor

IDS = tuple(range(100, 120))


def ids(start: int, stop: int) -> tuple[int, ...]:
    return IDS[start:stop]


def thoughts(start: int, stop: int) -> tuple[tuple[int, ...], ...]:
    return tuple((chunk,) for chunk in range(start // 2, stop // 2))


def test_full_pages_are_made_known_and_found_again_with_their_thoughts() -> None:
    pool = PagePool(8, 4)
    index, table = PrefixCache(pool), PageTable(pool)
    table.grow(14)
    trail = PrefixCursor(index, 4)
    trail.extend(3, 3, table, ids, thoughts)
    assert (index.num_pages, trail.next_at) == (0, 4)
    trail.extend(13, 8, table, ids, thoughts)
    assert (index.num_pages, trail.next_at) == (3, 16)
    canonical, node, num_canonical = index.match(IDS, canonical_only=True)
    assert (canonical, num_canonical) == (list(table.pages[:2]), 2)
    assert index.thoughts(node, canonical) == [(0,), (1,), (2,), (3,)]
    everything, node, num_canonical = index.match(IDS, canonical_only=False)
    assert (everything, num_canonical) == (list(table.pages[:3]), 2)
    assert index.thoughts(node, everything) == [(chunk,) for chunk in range(6)]
    other = PrefixCursor(index, 4)
    other.begin(node, 3)
    other.extend(16, 16, table, ids, None)
    assert index.match(IDS, canonical_only=False)[0][3:] == [table.pages[3]]


def test_a_closed_trail_ends_and_one_that_left_begins_anew() -> None:
    pool = PagePool(8, 4)
    index, table = PrefixCache(pool), PageTable(pool)
    table.grow(12)
    trail = PrefixCursor(index, 4)
    trail.extend(4, 4, table, ids, None)
    trail.leave()
    assert trail.next_at == 4
    trail.extend(8, 8, table, ids, None)
    assert index.num_pages == 2
    trail.close()
    trail.extend(12, 12, table, ids, None)
    assert index.num_pages == 2
