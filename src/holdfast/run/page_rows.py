"""Page tables as arrays, row by row, kept while they are used: most sequences have the pages they had a pass ago."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MOST = 2048  # rows that are kept


class PageRows:
    """Rows of one matrix, by the pages they hold; zeros behind the last page."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}
        self._matrix = np.zeros((64, 16), np.int32)

    def table(self, pages: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
        """int32 [len(pages), longest of them], the caller's own."""
        width = max(map(len, pages))
        if len(self._places) + len(pages) > max(_MOST, len(pages)):
            self._places.clear()
        self._widen(len(self._places) + len(pages), width)
        places = [self._places.get(each, -1) for each in pages]
        if -1 in places:
            places = [
                self._place(each) if place < 0 else place for place, each in zip(places, pages, strict=True)
            ]
        return self._matrix[places, :width]

    def _place(self, pages: tuple[int, ...]) -> int:
        """Of pages that are new, or stand twice in one table."""
        place = self._places.setdefault(pages, len(self._places))
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
