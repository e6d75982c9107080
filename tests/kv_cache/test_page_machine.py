"""Pool, prefix cache and page tables under random use, against a model that remembers what every page holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixCursor, PrefixMatch

SIZE = 2
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=10)


class Holder:
    """A request as the scheduler would treat it: tokens, pages, how many of them are in the prefix cache, and
    how many it announced."""

    def __init__(self, table: PageTable, tokens: list[int], cursor: PrefixCursor, num_cached: int) -> None:
        self.table, self.tokens, self.cursor, self.num_cached = table, tokens, cursor, num_cached
        self.canonical = cursor._canonical_only
        self.num_announced = 0

    def read(self, start: int, stop: int) -> tuple[int, ...]:
        return tuple(self.tokens[start:stop])


class PageMachine(RuleBasedStateMachine):
    @initialize(num_pages=st.integers(1, 12))
    def start(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages, SIZE)
        self.cache = PrefixCache(self.pool)
        self.holders: list[Holder] = []
        self.waiting: list[tuple[PrefixCursor, list[int]]] = []
        self.num_arrived = 0
        self.written: dict[
            int, tuple[tuple[int, ...], bool]
        ] = {}  # page -> (tokens up to its end, canonical)

    @rule(tokens=TOKENS, canonical=st.booleans())
    def wait(self, tokens: list[int], canonical: bool) -> None:
        self.num_arrived += 1
        cursor = PrefixCursor(self.cache, SIZE, canonical_only=canonical, number=self.num_arrived)
        self.waiting.append((cursor, tokens))

    def check_match(self, cursor: PrefixCursor, tokens: list[int]) -> PrefixMatch:
        """A request that looked before finds what a new one does, and waits for what will come."""
        match = cursor.match(tokens)
        fresh = PrefixCursor(
            self.cache, SIZE, canonical_only=cursor._canonical_only, number=cursor._number
        ).match(tokens)
        assert (match.pages, match.node, match.num_canonical) == (
            fresh.pages,
            fresh.node,
            fresh.num_canonical,
        )
        assert (match.leader, match.leader_len) == (fresh.leader, fresh.leader_len)
        for number, page in enumerate(match.pages):
            assert self.written[page][0] == tuple(tokens[: (number + 1) * SIZE])
        assert all(self.written[page][1] for page in match.pages[: match.num_canonical])
        if cursor._canonical_only:
            assert match.num_canonical == len(match.pages)
        if match.leader is not None:
            (leader,) = [one for one in self.holders if one.cursor is match.leader]
            assert leader.canonical or not cursor._canonical_only
            assert leader.cursor._number < cursor._number
            assert leader.read(0, match.leader_len) == tuple(tokens[: match.leader_len])
            assert leader.num_cached * SIZE < match.leader_len <= leader.num_announced * SIZE
            assert match.is_coming
        return match

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        if self.waiting:
            self.check_match(*data.draw(st.sampled_from(self.waiting)))

    @rule(data=st.data(), announces=st.booleans())
    def arrive(self, data: st.DataObject, announces: bool) -> None:
        if not self.waiting:
            return
        cursor, tokens = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        match = self.check_match(cursor, tokens)
        table = PageTable(self.pool)
        for page in match.pages:
            self.pool.hold(page)
        table.adopt(match.pages)
        if table.num_missing(len(tokens)) > self.pool.num_available:
            table.release()
            return
        table.grow(len(tokens))
        holder = Holder(table, list(tokens), cursor, len(match.pages))
        # an ordinary request after fast pages writes fast pages
        for number in range(len(match.pages), len(tokens) // SIZE):
            self.written[table[number]] = (tuple(tokens[: (number + 1) * SIZE]), holder.canonical)
        cursor.move_to(match.node, len(match.pages))
        if announces:
            cursor.announce(len(tokens), holder.read)
            holder.num_announced = len(tokens) // SIZE
        self.holders.append(holder)

    @rule(data=st.data())
    def cache_page(self, data: st.DataObject) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(self.holders))
            length = (holder.num_cached + 1) * SIZE
            if length <= len(holder.tokens):
                holder.cursor.extend(
                    length,
                    canonical_len=length if holder.canonical else 0,
                    page_table=holder.table,
                    tokens=holder.read,
                    extra=None,
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
            least = max(1, holder.num_cached * SIZE, holder.num_announced * SIZE)
            if least < len(holder.tokens):
                holder.tokens = holder.tokens[: data.draw(st.integers(least, len(holder.tokens)))]
                holder.table.truncate(len(holder.tokens))
                assert len(holder.table) == self.pool.pages_for(len(holder.tokens))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.holders:
            holder = data.draw(st.sampled_from(self.holders))
            self.holders.remove(holder)
            holder.cursor.reset()
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
