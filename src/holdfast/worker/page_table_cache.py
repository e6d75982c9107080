"""Page tables as arrays, cached by row: most requests have the same pages as a pass ago.

A row is found by the identity of the tuple of pages. Comparing or hashing a long tuple would take
as long as reading it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MAX_ROWS = 2048


class PageTableCache:
    """Rows of one matrix, by the tuple of pages they hold; zeros after the last page."""

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}  # by id of the tuple
        self._tuples: list[tuple[int, ...]] = []  # by row; alive, so that no id is reused
        self._matrix = np.zeros((64, 16), np.int32)

    def table(self, pages: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
        """int32 [len(pages), longest of them], a copy."""
        width = max(map(len, pages))
        if len(self._tuples) + len(pages) > _MAX_ROWS:
            self._row_of, self._tuples = {}, []
        self._grow(len(self._tuples) + len(pages), width)
        known = self._row_of.get
        rows = [known(id(each), -1) for each in pages]
        if -1 in rows:
            rows = [self._add(each) if row < 0 else row for row, each in zip(rows, pages, strict=True)]
        if len(rows) == 1:
            return self._matrix[rows[0] : rows[0] + 1, :width].copy()
        return self._matrix[rows, :width]

    def _add(self, pages: tuple[int, ...]) -> int:
        row = self._row_of.setdefault(id(pages), len(self._tuples))
        if row == len(self._tuples):  # else the tuple is in this table twice
            self._tuples.append(pages)
        self._matrix[row, : len(pages)] = pages
        self._matrix[row, len(pages) :] = 0
        return row

    def _grow(self, num_rows: int, width: int) -> None:
        """Make room for so many rows of so many pages."""
        rows, columns = self._matrix.shape
        if num_rows > rows or width > columns:
            larger = np.zeros((_grown(rows, num_rows), _grown(columns, width)), np.int32)
            larger[:rows, :columns] = self._matrix
            self._matrix = larger


def _grown(size: int, needed: int) -> int:
    return size if needed <= size else 1 << (needed - 1).bit_length()
