"""A sequence's pages, in position order: grown before a pass writes, truncated after a rollback, given up at the end.

Pages that somebody still computes with outlast the sequence: a table that is given up while it is pinned keeps them until the
last pin is gone.
"""

from collections.abc import Iterable

from holdfast.kv_cache.page_pool import PagePool


class PageTable:
    """Owned by one sequence; holds each of its pages once."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: list[int] = []
        self._listed: tuple[int, ...] | None = ()
        self._num_pins = 0
        self._given_up = False
        self.capacity = 0  # positions that have a slot

    @property
    def pages(self) -> tuple[int, ...]:
        if self._listed is None:
            self._listed = tuple(self._pages)
        return self._listed

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, index: int) -> int:
        return self._pages[index]

    def adopt(self, pages: Iterable[int]) -> None:
        """Pages already held for this sequence (a prefix hit)."""
        self._pages.extend(pages)
        self._changed()

    def pages_for(self, length: int) -> int:
        return self._pool.pages_for(length)

    def num_missing(self, length: int) -> int:
        """How many more pages positions 0 .. length - 1 need."""
        return max(0, self._pool.pages_for(length) - len(self._pages))

    def grow(self, length: int) -> None:
        """Take pages until positions 0 .. length - 1 have a slot. The caller has made sure they are there."""
        if length <= self.capacity:
            return
        for _ in range(self.num_missing(length)):
            self._pages.append(self._pool.take())
        self._changed()

    def truncate(self, length: int) -> None:
        """Give back the pages behind position length - 1."""
        keep = self._pool.pages_for(length)
        if len(self._pages) <= keep:
            return
        while len(self._pages) > keep:
            self._pool.drop(self._pages.pop())
        self._changed()

    def release(self) -> None:
        """Give everything back, the end of the chain first, so that it is evicted before its beginning."""
        self.truncate(0)

    @property
    def is_pinned(self) -> bool:
        return self._num_pins > 0

    def pin(self) -> None:
        """Somebody computes with these pages, whatever becomes of their owner."""
        self._num_pins += 1

    def unpin(self) -> None:
        assert self._num_pins > 0, "a table was unpinned more often than pinned"
        self._num_pins -= 1
        if self._given_up and not self._num_pins:
            self.release()

    def give_up(self) -> None:
        """The owner is done with it: release it now, or when the last pin is gone."""
        self._given_up = True
        if not self._num_pins:
            self.release()

    def _changed(self) -> None:
        self._listed = None
        self.capacity = len(self._pages) * self._pool.page_size
