"""Page tables come out the same whatever was asked for before."""

import random

from holdfast.worker.page_table_cache import _MAX_ROWS, PageTableCache


def test_rows_that_grow_shrink_and_come_back() -> None:
    rng = random.Random(3)
    kept = PageTableCache()
    tables = [(1, 2), (1, 2, 3), (7,) * 300, (), (4,)]
    for step in range(400):
        asked = [rng.choice(tables) for _ in range(rng.randint(1, 200))]
        tables.append(tuple(rng.randrange(9) for _ in range(rng.randint(1, 30))))
        if step % 50 == 0:
            tables += [(step, number) for number in range(_MAX_ROWS // 3)]
        width = max(map(len, asked))
        found = kept.table(asked)
        assert found.tolist() == [[*pages] + [0] * (width - len(pages)) for pages in asked]


def test_more_rows_at_once_than_are_kept() -> None:
    asked = [(number, number + 1) for number in range(2 * _MAX_ROWS)]
    kept = PageTableCache()
    for _ in range(2):
        assert kept.table(asked).tolist() == [list(pages) for pages in asked]


def test_the_table_is_the_callers_own() -> None:
    kept = PageTableCache()
    kept.table([(1, 2)])[:] = 9
    assert kept.table([(1, 2)]).tolist() == [[1, 2]]
