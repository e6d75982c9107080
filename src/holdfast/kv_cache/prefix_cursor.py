"""How far a sequence's pages are known to the prefix index: page by page behind the node of the last one."""

from collections.abc import Callable

from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PageThoughts, PageTokens, PrefixCache, PrefixNode


class PrefixCursor:
    """One sequence's way through the index."""

    def __init__(self, index: PrefixCache, page_size: int) -> None:
        self._index = index
        self._page_size = page_size
        self._is_open = True
        self.begin(index.root, 0)

    def begin(self, node: PrefixNode, num_pages: int) -> None:
        """Behind pages that were found in the index."""
        self._node, self._num_pages = node, num_pages
        self.next_at = (
            num_pages + 1
        ) * self._page_size  # so many positions computed, the next page can be made known

    def leave(self) -> None:
        """The sequence has no pages any more."""
        self.begin(self._index.root, 0)

    def close(self) -> None:
        """Nobody else shall read what is computed from now on."""
        self._is_open = False

    def extend(
        self,
        length: int,
        canonical_len: int,
        table: PageTable,
        tokens: Callable[[int, int], PageTokens],
        thoughts: Callable[[int, int], PageThoughts] | None,
    ) -> None:
        """Make the full pages among the first `length` positions known: canonical ones to everybody, others to ordinary
        requests. tokens and thoughts give those of the positions from one to another."""
        while self._is_open and self.next_at <= length:
            start, stop = self.next_at - self._page_size, self.next_at
            node = self._index.insert(
                self._node,
                tokens(start, stop),
                table[self._num_pages],
                canonical=stop <= canonical_len,
                thoughts=() if thoughts is None else thoughts(start, stop),
            )
            self.begin(node, self._num_pages + 1)
