"""Waiting and running requests: admission, preemption, request indices.

The oldest request of a holder comes first everywhere. It is preempted only for requests that are
already in the same plan, or for another holder, so no request starves. While a plan is in flight no
request is preempted: if one must be, nothing more is planned until it is read.

Holders share places and pages (`share_policy.py`).

A request waits for pages that a running one computes, if that is sooner (`is_sooner_shared` in
policy.py). Younger ones may start meanwhile, but leave it a place and its pages. It waits only for an
older one of its holder, which comes before it in each pass as well. So it loses at most the pass after
the one with these pages, two with async scheduling, and no other holder can hold it up.
"""

from collections.abc import Collection, Iterator

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixMatch
from holdfast.scheduler.policy import SchedulerConfig, is_sooner_shared, may_admit
from holdfast.scheduler.request_state import Phase, RequestState
from holdfast.scheduler.share_policy import SharePolicy, WaitingRequests
from holdfast.scheduler.spot_checks import SpotChecker


class PlanInFlight(Exception):
    """A request must be preempted, which is not possible while a plan is in flight."""


class RequestQueue:
    """The live requests: those that wait, and those that run and hold pages and a request index."""

    def __init__(
        self, config: SchedulerConfig, pool: PagePool, prefix_cache: PrefixCache, spot_checker: SpotChecker
    ) -> None:
        self._config = config
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._spot_checker = spot_checker
        self.waiting = WaitingRequests()
        self.running: dict[int, RequestState] = {}
        self.confirming: set[int] = set()  # live requests with tokens of another engine to confirm
        self._by_arrival: list[RequestState] | None = []
        # Indices of requests that ended stay taken until no plan in flight uses them.
        self._num_request_indices = config.max_num_seqs * (2 if config.async_scheduling else 1)
        self._free_indices = list(range(self._num_request_indices - 1, -1, -1))
        self.shares = SharePolicy(pool, self.waiting, self.running, 2 * self._num_request_indices)

    def enqueue(self, state: RequestState) -> None:
        self.waiting.add(state)
        if state.request.sent and state.is_confirming:
            self.confirming.add(state.request_id)

    def admit(self, step: int, *, in_flight: bool, has_checks: bool) -> None:
        """Start waiting requests while there are places and pages. has_checks: spot checks hold pages."""
        lines = {holder: self._startable(holder) for holder in self.waiting.holders}
        is_short = False  # of pages, for one of them
        while lines:
            holder = self.shares.next_waiting(lines)
            victim = None
            if len(self.running) >= self._config.max_num_seqs:
                victim = self.shares.place_victim(holder, step)
                if victim is None:
                    del lines[holder]  # it gets nothing more in this step
                    continue
            found = next(lines[holder], None)
            if found is None:
                del lines[holder]
                continue
            if victim is not None:
                self._preempt(victim, in_flight=in_flight)
            if not self._try_start(*found, step, in_flight=in_flight, others_wait=is_short):
                del lines[holder]
                is_short = True
        is_idle = not self.running and not in_flight and not has_checks
        assert not (is_idle and self.waiting), "an idle engine must be able to admit"

    def _startable(self, holder: str) -> Iterator[tuple[RequestState, PrefixMatch]]:
        """Yield the waiting requests of a holder that can start, oldest first. Pass over those that wait for
        another one's pages, but leave a place and pages for them."""
        num_passed = num_pages = 0
        for state in tuple(self.waiting.of(holder)):
            if not self.shares.may_run(state, num_passed):
                return
            num_needed = self._pool.pages_for(state.tokens.committed_len)
            num_running = len(self.running) + num_passed
            if num_passed and (
                num_running >= self._config.max_num_seqs
                or not may_admit(num_pages + num_needed, self._pool.num_available, num_running)
            ):
                return
            match = state.awaited
            if match is None or not match.is_coming:
                match = self._match(state)
                state.awaited = match if self._is_worth_waiting(match) else None
            if state.awaited is None:
                yield state, match
            else:
                num_passed += 1
                num_pages += num_needed - match.leader_len // self._pool.page_size

    def _try_start(
        self, state: RequestState, match: PrefixMatch, step: int, *, in_flight: bool, others_wait: bool
    ) -> bool:
        """Start the request if its pages are available, or can be taken from other holders. others_wait:
        another holder waits for pages, so only holders within their share get any."""
        length, states = state.tokens.committed_len, self._prefix_cache.states
        if states is not None and match.state is not None and not states.read(match.state):
            match = self._prefix_cache.no_match()
        for page in match.pages:
            self._pool.hold(page)
        num_needed = self._pool.pages_for(length) - len(match.pages)
        num_pages = self._pool.pages_for(length)
        may_start = not others_wait or self.shares.may_grow(state, num_pages)
        victim: RequestState | None = None
        while may_start and not may_admit(num_needed, self._pool.num_available, len(self.running)):
            victim = self.shares.page_victim(state, num_pages, step)
            if victim is None or in_flight:
                may_start = False
            else:
                self._preempt(victim, in_flight=in_flight)
        if not may_start:
            if states is not None and match.state is not None:
                states.end_read(match.state)
            for page in reversed(match.pages):  # now the most recently used ones: they are evicted last
                self._pool.drop(page)
            if victim is not None:
                raise PlanInFlight
            return False
        self.waiting.remove(state)
        state.admit(match)
        state.page_table.grow(length)
        if self._config.prefix_cache:
            state.announce_pages()
        if match.leader is not None:
            match.leader.num_forgone += match.leader_len - state.computed_len
        self.shares.started(state, step)
        state.admitted_at, state.admitted_len = step, length
        if self._config.async_scheduling:
            state.request_index = self._free_indices.pop()
        self.running[state.request_id] = state
        self._by_arrival = None
        return True

    def _preempt(self, victim: RequestState, *, in_flight: bool) -> None:
        if in_flight:
            raise PlanInFlight
        self.free_index(self.remove(victim))
        self._spot_checker.forget(victim)
        victim.preempt()
        self.enqueue(victim)

    def _match(self, state: RequestState) -> PrefixMatch:
        if not self._config.prefix_cache:
            return self._prefix_cache.no_match()
        token_ids = state.tokens.ids(0, state.cacheable_len)
        return state.prefix_cursor.match(token_ids, None if state.is_scored else state.scored_len)

    def _is_worth_waiting(self, match: PrefixMatch) -> bool:
        """Return whether the request of this match waits for its leader."""
        if match.leader is None:
            return False
        num_shared = match.leader_len - len(match.pages) * self._pool.page_size
        cost = self._config.reference_tokens
        if self._config.async_scheduling:  # results are read one pass later
            cost *= 2
        return is_sooner_shared(num_shared, match.leader.num_forgone, cost)

    def remove(self, state: RequestState) -> int:
        """Stop a request. Return its request index, which the caller frees, or -1 if it did not run."""
        if self.running.pop(state.request_id, None) is None:
            return -1
        self._by_arrival = None
        self.shares.stopped(state)
        request_index, state.request_index = state.request_index, -1
        return request_index

    def free_index(self, request_index: int) -> None:
        """Let another request use this index."""
        if request_index >= 0:
            assert request_index not in self._free_indices, "a request index was freed twice"
            self._free_indices.append(request_index)

    def is_running(self, state: RequestState) -> bool:
        return state.request_id in self.running

    def by_arrival(self) -> list[RequestState]:
        """Return the running requests. The list is shared: do not change or keep it."""
        if self._by_arrival is None:
            self._by_arrival = [self.running[request_id] for request_id in sorted(self.running)]
        return self._by_arrival

    def split(self) -> tuple[list[RequestState], list[RequestState]]:
        """Return the running requests that decode and those that prefill, without blocked ones."""
        decoding: list[RequestState] = []
        prefilling: list[RequestState] = []
        for state in self.by_arrival():
            if state.in_flight.spans and state.is_blocked:
                continue
            (prefilling if state.phase is Phase.PREFILL and state.is_prefilling else decoding).append(state)
        return decoding, prefilling

    def make_room(
        self, state: RequestState, length: int, planned: Collection[int], step: int, *, in_flight: bool
    ) -> bool:
        """Grow the request's page table. While pages are short, preempt requests that are not planned, at
        last this one: then return False."""
        if not self.is_running(state):
            return False
        while state.page_table.num_missing(length) > self._pool.num_available:
            unplanned = [other for other in self.running.values() if other.request_id not in planned]
            victim = self.shares.growth_victim(unplanned, step)
            self._preempt(victim, in_flight=in_flight)
            if victim is state:
                return False
        state.page_table.grow(length)
        return True

    def check_indices(self, in_flight: Collection[int]) -> None:
        """Raise unless every request index is free, or used by one request."""
        held = [state.request_index for state in self.running.values() if state.request_index >= 0]
        assert len(held) == (len(self.running) if self._config.async_scheduling else 0)
        indices = [*held, *self._free_indices, *(index for index in in_flight if index >= 0)]
        assert sorted(indices) == list(range(self._num_request_indices)), (
            "a request index leaked, or is used twice"
        )
