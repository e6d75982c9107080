"""Waiting and running requests: admission, preemption, request indices.

The oldest request comes first everywhere. It is preempted only for requests that are already in the
same plan, so no request starves. While a plan is in flight no request is preempted: if pages are
short, nothing more is planned until it is read.
"""

from bisect import insort
from collections.abc import Collection

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixMatch
from holdfast.scheduler.policy import SchedulerConfig, may_admit
from holdfast.scheduler.request_state import Phase, RequestState
from holdfast.scheduler.spot_checks import SpotChecker


class OutOfPages(Exception):
    """Pages are short while a plan is in flight."""


class RequestQueue:
    """The live requests: those that wait, by arrival, and those that run and hold pages and a
    request index."""

    def __init__(
        self, config: SchedulerConfig, pool: PagePool, prefix_cache: PrefixCache, spot_checker: SpotChecker
    ) -> None:
        self._config = config
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._spot_checker = spot_checker
        self.waiting: list[RequestState] = []  # by arrival
        self.running: dict[int, RequestState] = {}
        self._by_arrival: list[RequestState] | None = []
        self._match_of_head: tuple[RequestState, PrefixMatch] | None = None
        # Indices of requests that ended stay taken until no plan in flight uses them.
        self._num_request_indices = config.max_num_seqs * (2 if config.async_scheduling else 1)
        self._free_indices = list(range(self._num_request_indices - 1, -1, -1))

    def enqueue(self, state: RequestState) -> None:
        insort(self.waiting, state, key=lambda other: other.request_id)

    def admit(self, *, in_flight: bool) -> None:
        """Start waiting requests, in order of arrival, while there are pages. in_flight: passes in
        flight hold pages."""
        for state in tuple(self.waiting):
            if len(self.running) >= self._config.max_num_seqs:
                break
            if self._waits_for_leader(state):
                continue
            length = state.tokens.committed_len
            match = self._match(state)
            for page in match.pages:
                self._pool.hold(page)
            num_needed = self._pool.pages_for(length) - len(match.pages)
            if not may_admit(num_needed, self._pool.num_available, len(self.running)):
                for page in reversed(match.pages):  # now the most recently used ones: they are evicted last
                    self._pool.drop(page)
                break
            self.waiting.remove(state)
            state.admit(match)
            state.page_table.grow(length)
            self._start(state)
        is_idle = not self.running and not in_flight
        assert not (is_idle and self.waiting), "an idle engine must be able to admit"

    def _match(self, state: RequestState) -> PrefixMatch:
        """The request's match in the prefix cache. That of a request that waits for pages is
        remembered from step to step."""
        if not self._config.prefix_cache:
            return self._prefix_cache.no_match()
        if self._match_of_head is not None:
            head, match = self._match_of_head
            if head is state and self._prefix_cache.is_current(match):
                return match
        match = self._prefix_cache.match(
            state.tokens.ids(0, state.cacheable_len),
            canonical_only=state.deterministic,
            salt=state.request.cache_salt,
            shared_len=state.request.shared_len,
        )
        self._match_of_head = state, match
        self._prefix_cache.track(match)
        return match

    def _waits_for_leader(self, state: RequestState) -> bool:
        """Whether another answer to the same prompt is computing pages that this request can
        share."""
        leader = self.running.get(state.request.leader) if state.request.leader is not None else None
        shares = self._config.prefix_cache and state.cacheable_len >= self._pool.page_size
        return shares and leader is not None and leader.phase is Phase.PREFILL

    def _start(self, state: RequestState) -> None:
        if self._config.async_scheduling:
            state.request_index = self._free_indices.pop()
        self.running[state.request_id] = state
        self._by_arrival = None

    def remove(self, state: RequestState) -> int:
        """The request no longer runs. Returns its request index, which the caller frees, or -1."""
        if self.running.pop(state.request_id, None) is None:
            return -1
        self._by_arrival = None
        request_index, state.request_index = state.request_index, -1
        return request_index

    def free_index(self, request_index: int) -> None:
        """No plan in flight uses it any more."""
        if request_index >= 0:
            assert request_index not in self._free_indices, "a request index was freed twice"
            self._free_indices.append(request_index)

    def is_running(self, state: RequestState) -> bool:
        return state.request_id in self.running

    def by_arrival(self) -> list[RequestState]:
        """The running requests. The list is shared: do not change or keep it."""
        if self._by_arrival is None:
            self._by_arrival = [self.running[request_id] for request_id in sorted(self.running)]
        return self._by_arrival

    def split(self) -> tuple[list[RequestState], list[RequestState]]:
        """Running requests by arrival, without blocked ones: those that decode, those that
        prefill."""
        decoding: list[RequestState] = []
        prefilling: list[RequestState] = []
        for state in self.by_arrival():
            if state.in_flight.spans and state.is_blocked:
                continue
            (prefilling if state.phase is Phase.PREFILL and state.is_prefilling else decoding).append(state)
        return decoding, prefilling

    def make_room(
        self, state: RequestState, length: int, planned: Collection[int], *, in_flight: bool
    ) -> bool:
        """Grow the request's page table. While pages are short, preempt the youngest request that
        is not in this plan, the request itself at last. False: it is not running any more."""
        if not self.is_running(state):
            return False
        while state.page_table.num_missing(length) > self._pool.num_available:
            if in_flight:
                raise OutOfPages
            victim = self.running[max(request_id for request_id in self.running if request_id not in planned)]
            self.free_index(self.remove(victim))
            self._spot_checker.forget(victim)
            victim.preempt()
            self.enqueue(victim)
            if victim is state:
                return False
        state.page_table.grow(length)
        return True

    def check_indices(self, in_flight: Collection[int]) -> None:
        """Raise unless every request index is free, or used by one running request or by an ended
        one in flight."""
        held = [state.request_index for state in self.running.values() if state.request_index >= 0]
        assert len(held) == (len(self.running) if self._config.async_scheduling else 0)
        indices = [*held, *self._free_indices, *(index for index in in_flight if index >= 0)]
        assert sorted(indices) == list(range(self._num_request_indices)), (
            "a request index leaked, or is used twice"
        )
