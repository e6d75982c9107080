"""The pages of the KV cache: which are free, which requests use, which are kept for reuse.

    free   no request holds it, and its content is not worth keeping
    held   one or more requests hold it (reference count)
    idle   no request holds it, but the prefix cache knows its content; evicted least recently used first

Every page is in exactly one of these states; `check` verifies it.
"""

from collections import OrderedDict
from collections.abc import Callable

from holdfast.errors import ConfigError


class PagePool:
    """Reference counts over page numbers 0 .. num_pages - 1."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise ConfigError(
                f"a KV pool needs at least one page of at least one slot, not {num_pages} of {page_size}"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._refs = [0] * num_pages
        self._cached = [False] * num_pages
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.on_evict: Callable[[int], None] | None = None

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_pages - self.num_available

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def pages_for(self, length: int) -> int:
        """Return the number of pages that hold this many positions."""
        return -(-length // self.page_size)

    def take(self) -> int:
        """Return a page to write to, held once. Evict the least recently used idle page if none is free."""
        if self._free:
            page = self._free.pop()
        else:
            assert self._idle, "take() without a check of num_available"
            page, _ = self._idle.popitem(last=False)
            self._cached[page] = False
            if self.on_evict is not None:
                self.on_evict(page)
        self._refs[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that is held or idle."""
        if self._refs[page] == 0:
            del self._idle[page]
        self._refs[page] += 1

    def drop(self, page: int) -> None:
        """Remove a holder. After the last one the page is idle if it is in the prefix cache, else free."""
        assert self._refs[page] > 0, f"page {page} dropped more often than held"
        self._refs[page] -= 1
        if self._refs[page] == 0:
            if self._cached[page]:
                self._idle[page] = None
            else:
                self._free.append(page)

    def mark_cached(self, page: int) -> None:
        assert self._refs[page] > 0 and not self._cached[page]
        self._cached[page] = True

    def unmark_cached(self, page: int) -> None:
        """Let the prefix cache drop a page. It becomes free if nobody holds it."""
        assert self._cached[page]
        self._cached[page] = False
        if self._refs[page] == 0:
            del self._idle[page]
            self._free.append(page)

    def is_cached(self, page: int) -> bool:
        return self._cached[page]

    def check(self, holders: dict[int, int]) -> None:
        """Raise unless every page is in exactly one state and has as many holders as in `holders`."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        for page in range(self.num_pages):
            refs = self._refs[page]
            assert refs == holders.get(page, 0), (
                f"page {page} counts {refs} holders, has {holders.get(page, 0)}"
            )
            states = (page in free) + (page in self._idle) + (refs > 0)
            assert states == 1, f"page {page} is in {states} states"
            assert (page in self._idle) == (refs == 0 and self._cached[page]), (
                f"page {page} is idle without an entry in the prefix cache"
            )
