"""The prefix cache: a tree of full pages by their tokens.

A node is one full page of tokens after its parent's. It may hold two pages: a canonical one, which
every request may read, and a fast one, written by an ordinary request, which deterministic requests
never read. A node whose pages were evicted stays while it has children. For a model that thinks, a
node also keeps the thoughts after the chunks of its pages.

    root -- (t0..t15) -- (t16..t31) -- ...
              canonical 7    fast 12

A request with a salt finds only pages of requests with the same salt: the salt is part of the first
page's key. If the beginning of its prompt is shared by all, the salt is part of the first page's key
after it. No bit of an answer depends on it.

    root -- (t0..t15) -- ("salt", t16..t31) -- (t32..t47)        the first 16 to 31 tokens are shared
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable

PageTokens = tuple[int | str, ...]  # the first page after shared ones begins with the salt
PageThoughts = tuple[tuple[int, ...], ...]


@dataclass(eq=False, slots=True)
class PrefixNode:
    """One full page of tokens."""

    parent: "PrefixNode | None"
    tokens: PageTokens
    canonical: int | None = None
    fast: int | None = None
    canonical_thoughts: PageThoughts = ()
    fast_thoughts: PageThoughts = ()
    children: dict[PageTokens, "PrefixNode"] = field(default_factory=dict)
    is_attached: bool = True

    def page(self, canonical_only: bool) -> int | None:
        if self.canonical is not None or canonical_only:
            return self.canonical
        return self.fast


@dataclass(eq=False, slots=True)
class PrefixMatch:
    """The longest chain of full pages that a prompt starts with: its pages, its last node, how
    many leading pages are canonical, and the tokens of the page after it, if the prompt has a
    whole one."""

    pages: tuple[int, ...]
    node: PrefixNode
    num_canonical: int
    next_tokens: PageTokens | None = None

    @property
    def thoughts(self) -> list[tuple[int, ...]]:
        """The thoughts after the chunks of these pages."""
        found: list[PageThoughts] = []
        node = self.node
        for page in reversed(self.pages):
            found.append(node.canonical_thoughts if page == node.canonical else node.fast_thoughts)
            assert node.parent is not None
            node = node.parent
        return [thought for of_page in reversed(found) for thought in of_page]


class PrefixCache:
    """Full pages by the tokens before and in them. The pool calls back when it evicts a page."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = PrefixNode(None, ())
        self._node_of: dict[int, PrefixNode] = {}
        self._tracked: PrefixMatch | None = None
        self._tracked_pages: frozenset[int] = frozenset()
        pool.on_evict = self._forget

    @property
    def root(self) -> PrefixNode:
        return self._root

    @property
    def num_pages(self) -> int:
        return len(self._node_of)

    def match(
        self, token_ids: Sequence[int], *, canonical_only: bool, salt: str = "", shared_len: int = 0
    ) -> PrefixMatch:
        """The longest known chain of full pages at the beginning of token_ids. Holds no page."""
        size = self._pool.page_size
        salted = shared_len - shared_len % size  # the position of the page with the salt
        pages: list[int] = []
        num_canonical = 0
        node = self._root
        next_tokens: PageTokens | None = None
        for start in range(0, len(token_ids) - size + 1, size):
            next_tokens = _key(tuple(token_ids[start : start + size]), start == salted, salt)
            child = node.children.get(next_tokens)
            page = child.page(canonical_only) if child is not None else None
            if child is None or page is None:
                break
            if num_canonical == len(pages) and child.canonical == page:
                num_canonical += 1
            pages.append(page)
            node, next_tokens = child, None
        return PrefixMatch(tuple(pages), node, num_canonical, next_tokens)

    def no_match(self) -> PrefixMatch:
        """The match of a request that shares no pages."""
        return PrefixMatch((), self._root, 0)

    def track(self, match: PrefixMatch) -> None:
        """Remember the match until the cache changes in a way that could change it. One match is
        tracked at a time."""
        self._tracked, self._tracked_pages = match, frozenset(match.pages)

    def is_current(self, match: PrefixMatch) -> bool:
        """Whether a tracked match is still what `match` would return."""
        return match is self._tracked

    def insert(
        self,
        parent: PrefixNode,
        tokens: PageTokens,
        page: int,
        *,
        canonical: bool,
        thoughts: PageThoughts = (),
    ) -> PrefixNode:
        """Add a full page after its parent. If the node has such a page already, the older one
        stays."""
        node = _child(_attached(parent), tokens)
        if self._pool.is_cached(page):
            return node
        if canonical and node.canonical is None:
            node.canonical, node.canonical_thoughts = page, thoughts
        elif not canonical and node.canonical is None and node.fast is None:
            node.fast, node.fast_thoughts = page, thoughts
        else:
            return node
        self._node_of[page] = node
        self._pool.mark_cached(page)
        tracked = self._tracked
        if tracked is not None:
            extends = tokens == tracked.next_tokens and node.parent is tracked.node
            if extends or node.fast in self._tracked_pages:
                self._tracked = None
        return node

    def clear(self) -> None:
        """Forget every page."""
        for page in tuple(self._node_of):
            self._pool.unmark_cached(page)
            self._forget(page)
        self._tracked = None

    def _forget(self, page: int) -> None:
        if page in self._tracked_pages:
            self._tracked = None
        node = self._node_of.pop(page)
        if node.canonical == page:
            node.canonical = None
        else:
            node.fast = None
        while node.parent is not None and not node.children and node.canonical is None and node.fast is None:
            if not node.is_attached:
                break
            del node.parent.children[node.tokens]
            node.is_attached = False
            node = node.parent

    def check(self) -> None:
        """Raise unless nodes and pages refer to each other and every leaf has a page."""
        seen: set[int] = set()
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            known = [page for page in (node.canonical, node.fast) if page is not None]
            assert known or node.children, "a leaf without a page"
            for page in known:
                assert self._node_of.get(page) is node and self._pool.is_cached(page)
                seen.add(page)
            stack.extend(node.children.values())
        assert seen == set(self._node_of), "the prefix cache has pages that are not in its tree"


class PrefixCursor:
    """How far one request's pages are in the prefix cache: the node of its last cached page."""

    def __init__(
        self, prefix_cache: PrefixCache, page_size: int, salt: str = "", shared_len: int = 0
    ) -> None:
        self._prefix_cache = prefix_cache
        self._page_size = page_size
        self._salt = salt
        self._salted = shared_len - shared_len % page_size
        self._is_open = True
        self.reset()

    def move_to(self, node: PrefixNode, num_pages: int) -> None:
        """The first num_pages pages are in the cache; node is the last one's."""
        self._node, self._num_pages = node, num_pages
        self.next_len = (num_pages + 1) * self._page_size  # the next page is full at this length

    def reset(self) -> None:
        """The request has no pages."""
        self.move_to(self._prefix_cache.root, 0)

    def close(self) -> None:
        """Add no more pages."""
        self._is_open = False

    def extend(
        self,
        length: int,
        *,
        canonical_len: int,
        page_table: PageTable,
        tokens: Callable[[int, int], PageTokens],
        thoughts: Callable[[int, int], PageThoughts] | None,
    ) -> None:
        """Add the full pages among positions 0 .. length - 1. tokens(start, stop) and
        thoughts(start, stop) return those of positions start .. stop - 1."""
        while self._is_open and self.next_len <= length:
            start, stop = self.next_len - self._page_size, self.next_len
            node = self._prefix_cache.insert(
                self._node,
                _key(tokens(start, stop), start == self._salted, self._salt),
                page_table[self._num_pages],
                canonical=stop <= canonical_len,
                thoughts=() if thoughts is None else thoughts(start, stop),
            )
            self.move_to(node, self._num_pages + 1)


def _key(tokens: PageTokens, is_salted: bool, salt: str) -> PageTokens:
    return (salt, *tokens) if salt and is_salted else tokens


def _child(parent: PrefixNode, tokens: PageTokens) -> PrefixNode:
    node = parent.children.get(tokens)
    if node is None:
        node = parent.children[tokens] = PrefixNode(parent, tokens)
    return node


def _attached(node: PrefixNode) -> PrefixNode:
    """The node of the tree with the same tokens. A request may keep a node that was removed from
    the tree."""
    chain: list[PageTokens] = []
    while not node.is_attached:
        assert node.parent is not None
        chain.append(node.tokens)
        node = node.parent
    for tokens in reversed(chain):
        node = _child(node, tokens)
    return node
