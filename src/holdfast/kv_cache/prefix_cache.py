"""The prefix index: which pages already hold the KV of a chain of tokens.

A node is one full page of tokens behind its parent's. It may know two pages: a canonical one, which anybody may read,
and a fast one, written by an ordinary request, which deterministic requests never read. A node whose pages were
evicted stays, hollow, as long as it has children. Beside a page stands what a model that thinks thought behind its chunks.

    root -- (t0..t15) -- (t16..t31) -- ...
              canonical 7    fast 12
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.kv_cache.page_pool import PagePool

PageTokens = tuple[int, ...]
PageThoughts = tuple[tuple[int, ...], ...]


@dataclass(eq=False, slots=True)
class PrefixNode:
    """One full page of tokens in the chain."""

    parent: "PrefixNode | None"
    tokens: PageTokens
    canonical: int | None = None
    fast: int | None = None
    canonical_thoughts: PageThoughts = ()
    fast_thoughts: PageThoughts = ()
    children: dict[PageTokens, "PrefixNode"] = field(default_factory=dict)
    attached: bool = True

    def page(self, canonical_only: bool) -> int | None:
        if self.canonical is not None or canonical_only:
            return self.canonical
        return self.fast


class PrefixCache:
    """Full pages by the tokens before and in them. Evicted pages are forgotten through the pool's call-back."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = PrefixNode(None, ())
        self._node_of: dict[int, PrefixNode] = {}
        pool.on_evict = self._forget

    @property
    def root(self) -> PrefixNode:
        return self._root

    @property
    def num_pages(self) -> int:
        return len(self._node_of)

    def match(self, token_ids: Sequence[int], *, canonical_only: bool) -> tuple[list[int], PrefixNode, int]:
        """The longest known chain of full pages at the beginning of token_ids; every page is held for the caller.

        Returns the pages, the last node, and how many of the leading pages are canonical.
        """
        size = self._pool.page_size
        pages: list[int] = []
        num_canonical = 0
        node = self._root
        for start in range(0, len(token_ids) - size + 1, size):
            child = node.children.get(tuple(token_ids[start : start + size]))
            page = child.page(canonical_only) if child is not None else None
            if child is None or page is None:
                break
            if num_canonical == len(pages) and child.canonical == page:
                num_canonical += 1
            self._pool.hold(page)
            pages.append(page)
            node = child
        return pages, node, num_canonical

    def thoughts(self, node: PrefixNode, pages: Sequence[int]) -> list[tuple[int, ...]]:
        """What was thought behind the chunks of these pages, which end with the node's."""
        found: list[PageThoughts] = []
        for page in reversed(pages):
            found.append(node.canonical_thoughts if page == node.canonical else node.fast_thoughts)
            assert node.parent is not None
            node = node.parent
        return [thought for each in reversed(found) for thought in each]

    def insert(
        self,
        parent: PrefixNode,
        tokens: PageTokens,
        page: int,
        *,
        canonical: bool,
        thoughts: PageThoughts = (),
    ) -> PrefixNode:
        """Make a full page known behind its parent. If the chain has such a page already, the older one stays."""
        node = _child(_attached(parent), tokens)
        if self._pool.is_indexed(page):
            return node
        if canonical and node.canonical is None:
            node.canonical, node.canonical_thoughts = page, thoughts
        elif not canonical and node.canonical is None and node.fast is None:
            node.fast, node.fast_thoughts = page, thoughts
        else:
            return node
        self._node_of[page] = node
        self._pool.mark_indexed(page)
        return node

    def clear(self) -> None:
        """Forget every page."""
        for page in tuple(self._node_of):
            self._pool.unmark_indexed(page)
            self._forget(page)

    def _forget(self, page: int) -> None:
        node = self._node_of.pop(page)
        if node.canonical == page:
            node.canonical = None
        else:
            node.fast = None
        while node.parent is not None and not node.children and node.canonical is None and node.fast is None:
            if not node.attached:
                break
            del node.parent.children[node.tokens]
            node.attached = False
            node = node.parent

    def check(self) -> None:
        """Raise unless nodes and pages point at each other and no hollow leaf is left."""
        seen: set[int] = set()
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            known = [page for page in (node.canonical, node.fast) if page is not None]
            assert known or node.children, "a hollow node without children"
            for page in known:
                assert self._node_of.get(page) is node and self._pool.is_indexed(page)
                seen.add(page)
            stack.extend(node.children.values())
        assert seen == set(self._node_of), "the index knows pages its tree does not hold"


def _child(parent: PrefixNode, tokens: PageTokens) -> PrefixNode:
    node = parent.children.get(tokens)
    if node is None:
        node = parent.children[tokens] = PrefixNode(parent, tokens)
    return node


def _attached(node: PrefixNode) -> PrefixNode:
    """The node in the tree that stands for this one, which a sequence may have kept while the tree let it go."""
    chain: list[PageTokens] = []
    while not node.attached:
        assert node.parent is not None
        chain.append(node.tokens)
        node = node.parent
    for tokens in reversed(chain):
        node = _child(node, tokens)
    return node
