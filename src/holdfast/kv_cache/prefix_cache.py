"""The prefix cache: a tree of full pages by their tokens.

A node is one full page of tokens after its parent's. It may hold two pages: a canonical one, which
every request may read, and a fast one, written by an ordinary request, which deterministic requests
never read. A node whose pages were evicted stays while it has children. With each page it keeps what
the `RequestExtension` of its request gave with it, and the logprobs of its tokens if its request asked
for them: a request that asks for the prompt's logprobs reads only pages that have them.

    root -- (t0..t15) -- (t16..t31) -- ...
              canonical 7    fast 12

A request with a salt finds only pages of requests with the same salt: the salt is part of the first
page's key. No bit of an answer depends on it.

In a model with recurrent layers a request starts only after a page whose state is kept.

A running request announces the pages that it will compute: their nodes have it as leader. A request
that waits finds there that another one computes what it needs. Only the next node is added at once, the
others when somebody asks what comes after it.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.core.step_plan import TokenLogprob
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.state_pool import KeptState, StatePool

PageTokens = tuple[int | str, ...]  # the first page begins with the salt, if there is one


@dataclass(frozen=True, slots=True)
class PageLogprobs:
    """Of the last tokens of a page: of all but the first token of a prompt. They are kept beside it.

    A logprob depends on the tokens up to its own, as the page's KV does. So who reads the page may read
    them, too. As arrays they take 4 bytes a token, and 8 for each alternative.

    num_top    how many alternatives were asked for
    values     fp32, one a token
    top_ids    the alternatives, as many for each token
    top_values their logprobs
    """

    num_top: int
    values: "array[float]"
    top_ids: "array[int]"
    top_values: "array[float]"

    @staticmethod
    def of(logprobs: Sequence[TokenLogprob], num_top: int) -> "PageLogprobs":
        top = [pair for one in logprobs for pair in one.top]
        return PageLogprobs(
            num_top,
            array("f", [one.logprob for one in logprobs]),
            array("i", [token_id for token_id, _ in top]),
            array("f", [value for _, value in top]),
        )

    def read(self, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
        """Return those of the page's last tokens, with `num_top` alternatives at most."""
        first = len(self.values) - len(token_ids)
        each = len(self.top_ids) // len(self.values)  # fewer than were asked for in a small vocabulary
        found = []
        for at, token_id in enumerate(token_ids, first):
            some = slice(at * each, at * each + min(num_top, each))
            top = tuple(zip(self.top_ids[some], self.top_values[some], strict=True))
            found.append(TokenLogprob(token_id, self.values[at], top))
        return found


@dataclass(eq=False, slots=True)
class CachedPage:
    """A page of the pool, and what is kept with it."""

    number: int
    extra: object = None
    logprobs: PageLogprobs | None = None
    state: KeptState | None = None  # the recurrent state after the page, in a model that has one

    @property
    def has_state(self) -> bool:
        return self.state is not None and self.state.slot >= 0

    def keep(self, logprobs: PageLogprobs | None) -> None:
        """Keep these logprobs if they tell more than those that are kept."""
        if logprobs is not None and (self.logprobs is None or self.logprobs.num_top < logprobs.num_top):
            self.logprobs = logprobs


@dataclass(eq=False, slots=True)
class PrefixNode:
    """One full page of tokens."""

    parent: "PrefixNode | None"
    tokens: PageTokens
    canonical: CachedPage | None = None
    fast: CachedPage | None = None
    children: dict[PageTokens, "PrefixNode"] = field(default_factory=dict)
    is_attached: bool = True
    leader: "PrefixCursor | None" = None  # of the running request that computes its page

    def page(self, canonical_only: bool) -> CachedPage | None:
        if self.canonical is not None or canonical_only:
            return self.canonical
        return self.fast


@dataclass(eq=False, slots=True)
class PrefixMatch:
    """The longest chain of full pages that a prompt starts with.

    cached           the pages of the chain
    node             of the last one
    num_canonical    how many leading pages are canonical
    leader           a running request that computes more pages of this prompt
    leader_len       up to position leader_len - 1
    known_len        the length of all cached pages of this prompt; only a model with recurrent layers has some
                     after those of the chain
    """

    cached: tuple[CachedPage, ...]
    node: PrefixNode
    num_canonical: int
    leader: "PrefixCursor | None" = None
    leader_len: int = 0
    known_len: int = 0

    @property
    def state(self) -> KeptState | None:
        """The recurrent state after the chain."""
        return self.cached[-1].state if self.cached else None

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(page.number for page in self.cached)

    @property
    def is_coming(self) -> bool:
        """Return whether the leader still computes the pages up to leader_len."""
        return self.leader is not None and self.leader.will_reach(self.leader_len)


class PrefixCache:
    """Full pages by the tokens before and in them. The pool calls back when it evicts a page. states: of a
    model with recurrent layers."""

    def __init__(self, pool: PagePool, states: StatePool | None = None) -> None:
        self._pool = pool
        self.states = states
        self._root = PrefixNode(None, ())
        self._node_of: dict[int, PrefixNode] = {}
        pool.on_evict = self._forget

    @property
    def root(self) -> PrefixNode:
        return self._root

    @property
    def num_pages(self) -> int:
        return len(self._node_of)

    def no_match(self) -> PrefixMatch:
        """Return the match of a request that shares no pages."""
        return PrefixMatch((), self._root, 0)

    def insert(
        self,
        parent: PrefixNode,
        tokens: PageTokens,
        page: int,
        *,
        canonical: bool,
        extra: object = None,
        logprobs: PageLogprobs | None = None,
    ) -> PrefixNode:
        """Add a full page after its parent. If the node has such a page already, the older one stays, and
        these logprobs are kept with it."""
        node = _child(_attached(parent), tokens)
        cached = node.canonical if canonical else node.fast
        if cached is None and not self._pool.is_cached(page) and (canonical or node.canonical is None):
            cached = CachedPage(page, extra)
            if canonical:
                node.canonical = cached
            else:
                node.fast = cached
            self._node_of[page] = node
            self._pool.mark_cached(page)
        if cached is not None:
            cached.keep(logprobs)
        return node

    def clear(self) -> None:
        """Forget every page."""
        for page in tuple(self._node_of):
            self._pool.unmark_cached(page)
            self._forget(page)

    def _forget(self, page: int) -> None:
        node = self._node_of.pop(page)
        evicted = node.fast
        if node.canonical is not None and node.canonical.number == page:
            evicted, node.canonical = node.canonical, None
        else:
            node.fast = None
        if evicted is not None and evicted.state is not None and self.states is not None:
            self.states.forget(evicted.state)
        self.prune(node)

    def prune(self, node: PrefixNode) -> None:
        """Remove the node if nothing needs it, and then its parents."""
        while node.parent is not None and not node.children and node.is_attached:
            if node.canonical is not None or node.fast is not None or node.leader is not None:
                break
            del node.parent.children[node.tokens]
            node.is_attached = False
            node = node.parent

    def check(self) -> None:
        """Raise unless nodes and pages refer to each other, every leaf has a page or a leader, and
        leaders will compute what they announced."""
        seen: set[int] = set()
        stack = [(node, self._pool.page_size) for node in self._root.children.values()]
        while stack:
            node, length = stack.pop()
            known = [page.number for page in (node.canonical, node.fast) if page is not None]
            assert known or node.children or node.leader, "a leaf without a page"
            assert node.leader is None or node.leader.will_reach(length), "a leader that computes nothing"
            for page in known:
                assert self._node_of.get(page) is node and self._pool.is_cached(page)
                seen.add(page)
            stack.extend((child, length + self._pool.page_size) for child in node.children.values())
        assert seen == set(self._node_of), "the prefix cache has pages that are not in its tree"


class PrefixCursor:
    """How far one request's pages are in the prefix cache. While it runs: which pages it will add. While
    it waits: what is known of the nodes of its tokens."""

    def __init__(
        self,
        prefix_cache: PrefixCache,
        page_size: int,
        salt: str = "",
        *,
        canonical_only: bool = False,
        holder: str = "",
        number: int = 0,
        score_from: int | None = None,
        num_top: int = 0,
    ) -> None:
        """Begin with no pages.

        number: of its request, by arrival.
        score_from: the first of its tokens whose logprob is asked for, if any is.
        num_top: how many alternatives to each are asked for.
        """
        self._prefix_cache = prefix_cache
        self._page_size = page_size
        self._salt = salt
        self._canonical_only = canonical_only
        self._holder = holder
        self._number = number
        self._score_from = score_from
        self._num_top = num_top
        self._is_open = True
        self._tokens: Callable[[int, int], tuple[int, ...]] | None = None  # of what it announced
        self._announced_len = 0
        self._last, self._last_len = prefix_cache.root, 0  # the last node that it added for that
        self.num_forgone = 0  # tokens that others compute as well, because they did not wait
        # Lengths after which this request, or one that waits for its pages, wants the recurrent state kept.
        self.wanted_states: set[int] = set()
        self.reset()

    def move_to(self, node: PrefixNode, num_pages: int) -> None:
        """Note that the first `num_pages` pages are in the cache. node: of the last one."""
        self._node, self._num_pages = node, num_pages
        self.next_len = (num_pages + 1) * self._page_size  # the next page is full at this length

    @property
    def cached_len(self) -> int:
        """Positions whose pages were added."""
        return self._num_pages * self._page_size

    def reset(self) -> None:
        """Forget the request's pages."""
        self.withdraw()
        self.wanted_states.clear()
        self._known = self._prefix_cache.root  # of a request that waits: the last node of its tokens
        self.move_to(self._prefix_cache.root, 0)

    def close(self) -> None:
        """Add no more pages."""
        self.withdraw()
        self._is_open = False

    def match(self, token_ids: Sequence[int], scored_len: int | None = None) -> PrefixMatch:
        """Find the longest chain of full pages at the beginning of `token_ids`, and a request that computes
        more of them. Hold no page. A request that waits looks up only what is new since its last match.

        scored_len: the logprobs of the tokens from this one on must be with the pages. None: of none.
        """
        if scored_len is None:
            scored_len = len(token_ids)
        size = self._page_size
        path: list[PrefixNode] = []
        node = self._known
        while node.parent is not None:
            if node.is_attached:
                path.append(node)
            node = node.parent
        path.reverse()
        del path[len(token_ids) // size :]
        for stop in range((len(path) + 1) * size, len(token_ids) + 1, size):
            last = path[-1] if path else node
            if last.leader is not None and last.leader._last is last:
                last.leader._announce_after(last, stop - size)
            child = last.children.get(self._key(token_ids[stop - size : stop], stop))
            if child is None:
                break
            path.append(child)
        pages: list[CachedPage] = []
        num_canonical = 0
        for stop, one in enumerate(path, 1):
            page = one.page(self._canonical_only)
            if page is None or (stop * size > scored_len and self._lacks_logprobs(page)):
                break
            if num_canonical == len(pages) and one.canonical is page:
                num_canonical += 1
            pages.append(page)
            node = one
        self._known = path[-1] if path else node
        num_known = len(pages)
        if self._prefix_cache.states is not None:
            while pages and not pages[-1].has_state:
                pages.pop()
            node = path[len(pages) - 1] if pages else self._prefix_cache.root
            num_canonical = min(num_canonical, len(pages))
        match = PrefixMatch(tuple(pages), node, num_canonical, known_len=num_known * size)
        for num_pages in range(len(path), num_known, -1):
            leader = path[num_pages - 1].leader
            if leader is None or not leader._leads(self, num_known):
                continue
            if num_pages * size <= scored_len or leader._scores_for(self, scored_len):
                match.leader, match.leader_len = leader, num_pages * size
                leader.wanted_states.add(match.leader_len)
                break
        return match

    def keep_state(self, length: int, slot: int, *, canonical: bool) -> None:
        """Keep a state after `length` tokens of this request, which is in a slot that was lent, with the page
        before it. Give the slot back if that page is not cached, or has a state already."""
        states, node = self._prefix_cache.states, self._node
        assert states is not None and length <= self.cached_len
        for _ in range(self._num_pages - length // self._page_size):
            assert node.parent is not None
            node = node.parent
        page = node.canonical if canonical else node.fast
        if page is None or page.has_state or not node.is_attached or not self._is_open:
            states.give_back(slot)
        else:
            page.state = states.keep(slot)

    def _lacks_logprobs(self, page: CachedPage) -> bool:
        """Return whether the page is without logprobs that the request asks for."""
        return page.logprobs is None or page.logprobs.num_top < self._num_top

    def _scores(self, start: int) -> bool:
        """Return whether logprobs come with the pages from position `start` on."""
        return self._score_from is not None and self._score_from <= max(1, start)

    def _scores_for(self, other: "PrefixCursor", scored_len: int) -> bool:
        """Return whether the logprobs that the other asks for, from scored_len on, come with the pages."""
        return self._num_top >= other._num_top and self._scores(
            scored_len // self._page_size * self._page_size
        )

    def _leads(self, other: "PrefixCursor", num_found: int) -> bool:
        """Return whether a request that found `num_found` pages may wait for this one. This one must be
        of the same holder and older, so that it gets its share of each pass first. Its pages must be
        readable by the other, and it must be as far."""
        return (
            self._holder == other._holder
            and self._number < other._number
            and (self._canonical_only or not other._canonical_only)
            and self._num_pages >= num_found
        )

    def announce(self, length: int, tokens: Callable[[int, int], tuple[int, ...]]) -> None:
        """Announce that the request will compute the full pages among positions 0 .. length - 1."""
        if self._is_open:
            self._tokens, self._announced_len, self.num_forgone = tokens, length, 0
            self._announce_after(self._node, self.next_len - self._page_size)

    def _announce_after(self, node: PrefixNode, length: int) -> None:
        """Add the next node that this request leads after `node`, whose page ends at this length."""
        while length + self._page_size <= self._announced_len and self._tokens is not None:
            start, length = length, length + self._page_size
            node = _child(node, self._key(self._tokens(start, length), length))
            is_free = node.leader is None or (self._canonical_only and not node.leader._canonical_only)
            page = node.page(self._canonical_only)
            if is_free and (page is None or (self._scores(start) and self._lacks_logprobs(page))):
                node.leader = self
                break
        self._last, self._last_len = node, length

    def withdraw(self) -> None:
        """Take back what was announced. Nobody waits for it any more."""
        node, self._last, self._tokens = self._last, self._prefix_cache.root, None
        self._announced_len = self._last_len = 0
        while node.parent is not None:
            if node.leader is self:
                node.leader = None
                self._prefix_cache.prune(node)
            node = node.parent

    def will_reach(self, length: int) -> bool:
        """Return whether the page that ends at this length is announced and not in the cache yet."""
        return self.next_len <= length <= self._announced_len

    def extend(
        self,
        length: int,
        *,
        canonical_len: int,
        page_table: PageTable,
        tokens: Callable[[int, int], tuple[int, ...]],
        extra: Callable[[int, int], object] | None,
        logprobs: Callable[[int, int], PageLogprobs | None] | None = None,
    ) -> None:
        """Add the full pages among positions 0 .. length - 1. `tokens(start, stop)` returns the tokens of
        positions start .. stop - 1, `extra(start, stop)` and `logprobs(start, stop)` what is kept with
        their pages."""
        while self._is_open and self.next_len <= length:
            start, stop = self.next_len - self._page_size, self.next_len
            node = self._prefix_cache.insert(
                self._node,
                self._key(tokens(start, stop), stop),
                page_table[self._num_pages],
                canonical=stop <= canonical_len,
                extra=None if extra is None else extra(start, stop),
                logprobs=None if logprobs is None else logprobs(start, stop),
            )
            if node.leader is self:
                node.leader = None
            self.move_to(node, self._num_pages + 1)
        if self._last_len < self.next_len:
            self._announce_after(self._node, self.next_len - self._page_size)

    def _key(self, tokens: Sequence[int], stop: int) -> PageTokens:
        """Return the key of the node of the page that ends at position stop - 1."""
        if self._salt and stop == self._page_size:
            return (self._salt, *tokens)
        return tuple(tokens)


def _child(parent: PrefixNode, tokens: PageTokens) -> PrefixNode:
    node = parent.children.get(tokens)
    if node is None:
        node = parent.children[tokens] = PrefixNode(parent, tokens)
    return node


def _attached(node: PrefixNode) -> PrefixNode:
    """Return the node of the tree with the same tokens. A request may keep a node that was removed from
    the tree."""
    chain: list[PageTokens] = []
    while not node.is_attached:
        assert node.parent is not None
        chain.append(node.tokens)
        node = node.parent
    for tokens in reversed(chain):
        node = _child(node, tokens)
    return node
