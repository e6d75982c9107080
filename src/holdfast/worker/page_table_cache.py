"""Page tables as arrays, row by row, kept while they are used: most sequences have the pages they had a pass ago.

A row is known by the tuple's identity: to compare or to hash a long one would take as long as to read it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MOST = 2048  # rows that are kept


class PageTableCache:
    """Rows of one matrix, by the tuple of pages they hold; zeros behind the last page."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # by id
        self._kept: list[tuple[int, ...]] = []  # by place: what is alive shares its id with nobody
        self._matrix = np.zeros((64, 16), np.int32)

    def table(self, pages: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
        """int32 [len(pages), longest of them], the caller's own."""
        width = max(map(len, pages))
        if len(self._kept) + len(pages) > _MOST:
            self._places, self._kept = {}, []
        self._widen(len(self._kept) + len(pages), width)
        known = self._places.get
        places = [known(id(each), -1) for each in pages]
        if -1 in places:
            places = [
                self._place(each) if place < 0 else place for place, each in zip(places, pages, strict=True)
            ]
        return self._matrix[places, :width]

    def _place(self, pages: tuple[int, ...]) -> int:
        place = self._places.setdefault(id(pages), len(self._kept))
        if place == len(self._kept):  # else it stands twice in one table
            self._kept.append(pages)
        self._matrix[place, : len(pages)] = pages
        self._matrix[place, len(pages) :] = 0
        return place

    def _widen(self, num_rows: int, width: int) -> None:
        """Room for so many rows of so many pages."""
        rows, columns = self._matrix.shape
        if num_rows > rows or width > columns:
            larger = np.zeros((_grown(rows, num_rows), _grown(columns, width)), np.int32)
            larger[:rows, :columns] = self._matrix
            self._matrix = larger


def _grown(size: int, needed: int) -> int:
    return size if needed <= size else 1 << (needed - 1).bit_length()
