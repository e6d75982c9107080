"""The page table cache gives the same tables whatever it holds."""

import random

from holdfast.worker.input_batch import _MAX_ROWS, PageTableCache


def test_tables_are_right_after_any_history() -> None:
    rng = random.Random(3)
    cache = PageTableCache()
    tables = [(1, 2), (1, 2, 3), (7,) * 300, (), (4,)]
    for step in range(200):
        asked = [rng.choice(tables) for _ in range(rng.randint(1, 200))]
        tables.append(tuple(rng.randrange(9) for _ in range(rng.randint(1, 30))))
        if step % 50 == 0:
            tables += [(step, number) for number in range(_MAX_ROWS // 3)]
        width = max(map(len, asked))
        found = cache.table(asked)
        assert found.tolist() == [[*pages] + [0] * (width - len(pages)) for pages in asked]


def test_table_with_more_rows_than_the_cache() -> None:
    asked = [(number, number + 1) for number in range(2 * _MAX_ROWS)]
    cache = PageTableCache()
    for _ in range(2):
        assert cache.table(asked).tolist() == [list(pages) for pages in asked]


def test_table_is_a_copy() -> None:
    cache = PageTableCache()
    cache.table([(1, 2)])[:] = 9
    assert cache.table([(1, 2)]).tolist() == [[1, 2]]
