"""A sequence's pages, in position order: grown before a pass writes, truncated after a rollback, released at the end."""

from collections.abc import Iterable

from holdfast.kv.pool import PagePool


class PageTable:
    """Owned by one sequence; holds each of its pages once."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: list[int] = []

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(self._pages)

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, index: int) -> int:
        return self._pages[index]

    def adopt(self, pages: Iterable[int]) -> None:
        """Pages already held for this sequence (a prefix hit)."""
        self._pages.extend(pages)

    def pages_for(self, length: int) -> int:
        return self._pool.pages_for(length)

    def num_missing(self, length: int) -> int:
        """How many more pages positions 0 .. length - 1 need."""
        return max(0, self._pool.pages_for(length) - len(self._pages))

    def grow(self, length: int) -> None:
        """Take pages until positions 0 .. length - 1 have a slot. The caller has made sure they are there."""
        for _ in range(self.num_missing(length)):
            self._pages.append(self._pool.take())

    def truncate(self, length: int) -> None:
        """Give back the pages behind position length - 1."""
        keep = self._pool.pages_for(length)
        while len(self._pages) > keep:
            self._pool.drop(self._pages.pop())

    def release(self) -> None:
        """Give everything back, the end of the chain first, so that it is evicted before its beginning."""
        self.truncate(0)
