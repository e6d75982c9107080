"""Pool, prefix cache and page tables under random use, against a model that remembers what every page holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixNode

SIZE = 2
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=10)


class Holder:
    """A request as the scheduler would treat it: tokens, pages, how many of them are in the prefix cache."""

    def __init__(
        self, table: PageTable, tokens: list[int], node: PrefixNode, num_cached: int, canonical: bool
    ) -> None:
        self.table, self.tokens, self.node, self.num_cached = table, tokens, node, num_cached
        self.canonical = canonical


class PageMachine(RuleBasedStateMachine):
    @initialize(num_pages=st.integers(1, 12))
    def start(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages, SIZE)
        self.cache = PrefixCache(self.pool)
        self.holders: list[Holder] = []
        self.written: dict[
            int, tuple[tuple[int, ...], bool]
        ] = {}  # page -> (tokens up to its end, canonical)

    @rule(tokens=TOKENS, canonical=st.booleans())
    def arrive(self, tokens: list[int], canonical: bool) -> None:
        match = self.cache.match(tokens, canonical_only=canonical)
        pages, num_canonical = match.pages, match.num_canonical
        for number, page in enumerate(pages):
            assert self.written[page][0] == tuple(tokens[: (number + 1) * SIZE])
        assert all(self.written[page][1] for page in pages[:num_canonical])
        if canonical:
            assert num_canonical == len(pages)
        table = PageTable(self.pool)
        for page in pages:
            self.pool.hold(page)
        table.adopt(pages)
        if table.num_missing(len(tokens)) > self.pool.num_available:
            table.release()
            return
        table.grow(len(tokens))
        # an ordinary request after fast pages writes fast pages
        own = canonical
        for number in range(len(pages), len(tokens) // SIZE):
            self.written[table[number]] = (tuple(tokens[: (number + 1) * SIZE]), own)
        self.holders.append(Holder(table, tokens, match.node, len(pages), own))

    @rule(data=st.data())
    def cache_page(self, data: st.DataObject) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(self.holders))
            at = holder.num_cached
            if (at + 1) * SIZE <= len(holder.tokens):
                page_tokens = tuple(holder.tokens[at * SIZE : (at + 1) * SIZE])
                holder.node = self.cache.insert(
                    holder.node, page_tokens, holder.table[at], canonical=holder.canonical
                )
                holder.num_cached += 1

    @rule(data=st.data(), extra=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def grow(self, data: st.DataObject, extra: list[int]) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(self.holders))
            length = len(holder.tokens) + len(extra)
            if holder.table.num_missing(length) <= self.pool.num_available:
                first = len(holder.tokens) // SIZE
                holder.tokens = holder.tokens + extra
                holder.table.grow(length)
                for number in range(first, length // SIZE):
                    content = (tuple(holder.tokens[: (number + 1) * SIZE]), holder.canonical)
                    self.written[holder.table[number]] = content

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(self.holders))
            least = max(1, holder.num_cached * SIZE)
            if least < len(holder.tokens):
                holder.tokens = holder.tokens[: data.draw(st.integers(least, len(holder.tokens)))]
                holder.table.truncate(len(holder.tokens))
                assert len(holder.table) == self.pool.pages_for(len(holder.tokens))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(self.holders))
            self.holders.remove(holder)
            holder.table.release()
            assert len(holder.table) == 0

    @rule()
    def forget_all(self) -> None:
        self.cache.clear()
        assert self.cache.num_pages == 0

    @invariant()
    def everything_is_in_order(self) -> None:
        counts: dict[int, int] = {}
        for holder in self.holders:
            for page in holder.table.pages:
                counts[page] = counts.get(page, 0) + 1
        self.pool.check(counts)
        self.cache.check()
        assert self.pool.num_held == len(counts)


TestPageMachine = PageMachine.TestCase
TestPageMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
