"""The pages of one request, in position order: grown before a pass writes, truncated after a
rollback, given up at the end.

Passes in flight and spot checks pin the table. A table that is given up while it is pinned keeps
its pages until the last pin is removed.
"""

from collections.abc import Iterable

from holdfast.kv_cache.page_pool import PagePool


class PageTable:
    """Owned by one request; holds each of its pages once."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: list[int] = []
        self._as_tuple: tuple[int, ...] | None = ()
        self._num_pins = 0
        self._given_up = False
        self.capacity = 0  # positions that have a slot

    @property
    def pages(self) -> tuple[int, ...]:
        if self._as_tuple is None:
            self._as_tuple = tuple(self._pages)
        return self._as_tuple

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, index: int) -> int:
        return self._pages[index]

    def adopt(self, pages: Iterable[int]) -> None:
        """Append pages that are already held for this request (a prefix cache hit)."""
        self._pages.extend(pages)
        self._changed()

    def pages_for(self, length: int) -> int:
        return self._pool.pages_for(length)

    def num_missing(self, length: int) -> int:
        """Return how many more pages positions 0 .. length - 1 need."""
        return max(0, self._pool.pages_for(length) - len(self._pages))

    def grow(self, length: int) -> None:
        """Take pages until positions 0 .. length - 1 have a slot. They must be available."""
        if length <= self.capacity:
            return
        for _ in range(self.num_missing(length)):
            self._pages.append(self._pool.take())
        self._changed()

    def truncate(self, length: int) -> None:
        """Free the pages after position length - 1."""
        keep = self._pool.pages_for(length)
        if len(self._pages) <= keep:
            return
        while len(self._pages) > keep:
            self._pool.drop(self._pages.pop())
        self._changed()

    def release(self) -> None:
        """Free all pages, the last first, so that the end of a cached prefix is evicted first."""
        self.truncate(0)

    @property
    def is_pinned(self) -> bool:
        return self._num_pins > 0

    def pin(self) -> None:
        """Keep these pages, even if the request ends: a pass in flight or a spot check uses them."""
        self._num_pins += 1

    def unpin(self) -> None:
        assert self._num_pins > 0, "a page table was unpinned more often than pinned"
        self._num_pins -= 1
        if self._given_up and not self._num_pins:
            self.release()

    def give_up(self) -> None:
        """Release the pages, now or when the last pin is removed."""
        self._given_up = True
        if not self._num_pins:
            self.release()

    def _changed(self) -> None:
        self._as_tuple = None
        self.capacity = len(self._pages) * self._pool.page_size
