"""Waiting and running requests: admission, preemption, request indices.

The oldest request of a tenant comes first everywhere. It is preempted only for requests that are
already in the same plan, or for another tenant, so no request starves. While a plan is in flight no
request is preempted: if one must be, nothing more is planned until it is read.

Places and pages are shared between tenants. The tenant with the fewest running requests is admitted
first; of those with equally many, the one that was admitted longest ago. A request is preempted for
another tenant's

    if all places are taken    its tenant runs at least two requests more than the other;
                               or one to none, for SLICE_STEPS steps and at least one token
    if pages are short         its tenant holds more than an equal part of the pages, and the other
                               does not, nor will; or the other has waited for PATIENCE_STEPS steps,
                               and then runs for as many

These conditions are not true the other way round afterwards, so two tenants never preempt each other
in turn. One tenant alone gets everything, in order of arrival.

A request waits for pages that a running one computes, if that is sooner (`is_sooner_shared` in
policy.py). It is passed over until they are in the prefix cache, or until the other one ends or is
preempted. Younger ones may start meanwhile, but leave it a place and its pages. A request waits only
for an older one of its tenant, which comes before it in each pass as well. So it loses at most the
pass after the one with these pages, two with async scheduling, and no other tenant can hold it up.
"""

from collections import Counter
from collections.abc import Collection, Iterator

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixMatch
from holdfast.scheduler.phase import Phase
from holdfast.scheduler.policy import SchedulerConfig, is_sooner_shared, may_admit
from holdfast.scheduler.request_state import RequestState
from holdfast.scheduler.spot_checks import SpotChecker
from holdfast.scheduler.waiting import WaitingRequests

SLICE_STEPS = 64
PATIENCE_STEPS = 512


class PlanInFlight(Exception):
    """A request must be preempted, which is not possible while a plan is in flight."""


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
        self.waiting = WaitingRequests()
        self.running: dict[int, RequestState] = {}
        self.confirming: set[int] = set()  # live requests with tokens of another engine to confirm
        self._by_arrival: list[RequestState] | None = []
        self._num_running: Counter[str] = Counter()  # by tenant
        self._last_admitted: dict[str, int] = {}  # when each tenant was, by number of admissions
        self._num_admissions = 0
        # Indices of requests that ended stay taken until no plan in flight uses them.
        self._num_request_indices = config.max_num_seqs * (2 if config.async_scheduling else 1)
        self._free_indices = list(range(self._num_request_indices - 1, -1, -1))

    def enqueue(self, state: RequestState) -> None:
        self.waiting.add(state)
        if state.request.sent and state.is_confirming:
            self.confirming.add(state.request_id)

    @property
    def num_tenants(self) -> int:
        """The tenants with live requests."""
        return len(self._num_running.keys() | set(self.waiting.tenants))

    @property
    def is_shared(self) -> bool:
        """Whether requests of several tenants run."""
        return len(self._num_running) > 1

    def admit(self, step: int, *, in_flight: bool, has_checks: bool) -> None:
        """Start waiting requests while there are places and pages. in_flight: a plan is in flight.
        has_checks: spot checks hold pages."""
        lines = {tenant: self._startable(tenant) for tenant in self.waiting.tenants}
        is_short = False  # of pages, for one of them
        while lines:
            tenant = min(lines, key=self._turn)
            victim = None
            if len(self.running) >= self._config.max_num_seqs:
                victim = self._find_victim(tenant, step)
                if victim is None:
                    del lines[tenant]  # it gets nothing more in this step
                    continue
            found = next(lines[tenant], None)
            if found is None:
                del lines[tenant]
                continue
            if victim is not None:
                self._preempt(victim, in_flight=in_flight)
            if not self._try_start(*found, step, in_flight=in_flight, others_wait=is_short):
                del lines[tenant]
                is_short = True
        is_idle = not self.running and not in_flight and not has_checks
        assert not (is_idle and self.waiting), "an idle engine must be able to admit"

    def _turn(self, tenant: str) -> tuple[int, int, int]:
        """The order of tenants."""
        waiting = self.waiting.of(tenant)
        return (
            self._num_running[tenant],
            self._last_admitted.get(tenant, 0),
            waiting[0].request_id if waiting else 0,
        )

    def _startable(self, tenant: str) -> Iterator[tuple[RequestState, PrefixMatch]]:
        """The waiting requests of a tenant that can start now, oldest first, with their matches. Those
        that wait for another one's pages are passed over; a place and pages are left for them."""
        num_passed = num_pages = 0
        for state in tuple(self.waiting.of(tenant)):
            limit = state.request.max_running
            if limit is not None and self._num_running[tenant] + num_passed >= limit:
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

    def _find_victim(self, tenant: str, step: int) -> RequestState | None:
        """A running request of another tenant to preempt if all places are taken, so that one of this
        tenant may run."""
        num_own = self._num_running[tenant]
        # The largest tenant, its youngest request; of tenants with one request each, the one that ran longest.
        victim = max(
            self._unprotected(step) if num_own < len(self.running) else (),
            key=lambda other: (
                num := self._num_running[other.request.tenant],
                -other.admitted_at if num == 1 else other.request_id,
            ),
            default=None,
        )
        if victim is None:
            return None
        num_others = self._num_running[victim.request.tenant]
        is_over = (
            num_own == 0
            and num_others == 1
            and step - victim.admitted_at >= SLICE_STEPS
            and victim.has_progressed
        )
        return victim if num_others >= num_own + 2 or is_over else None

    def _try_start(
        self, state: RequestState, match: PrefixMatch, step: int, *, in_flight: bool, others_wait: bool
    ) -> bool:
        """Start the request if its pages are available, or can be taken from other tenants.

        others_wait: another tenant waits for pages. Then only tenants within their share get any.
        """
        length = state.tokens.committed_len
        for page in match.pages:
            self._pool.hold(page)
        num_needed = self._pool.pages_for(length) - len(match.pages)
        num_pages = self._pool.pages_for(length)
        may_start = not others_wait or self._is_within_share(state, num_pages)
        victim: RequestState | None = None
        while may_start and not may_admit(num_needed, self._pool.num_available, len(self.running)):
            victim = self._find_page_victim(state, num_pages, step)
            if victim is None or in_flight:
                may_start = False
            else:
                self._preempt(victim, in_flight=in_flight)
        if not may_start:
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
        self._start(state, step)
        return True

    def _find_page_victim(self, state: RequestState, num_pages: int, step: int) -> RequestState | None:
        """A running request that gives up its pages for a waiting one of another tenant."""
        if self.num_tenants < 2:
            return None
        if state.short_since is None:
            state.short_since = step
        tenant = state.request.tenant
        held = self._num_held()
        if step - state.short_since >= PATIENCE_STEPS:
            least = 0
        elif self._is_within_share(state, num_pages + len(self.running)):
            least = self._pool.num_pages // self.num_tenants
        else:
            return None
        others = [
            other
            for other in self._unprotected(step)
            if other.request.tenant != tenant and (least or other.has_progressed)
        ]
        return _youngest_of_largest(others, held, least)

    def _unprotected(self, step: int) -> list[RequestState]:
        """The requests that may be preempted for a waiting one: not those of this step."""
        return [
            state
            for state in self.running.values()
            if step >= state.protected_until and step > state.admitted_at
        ]

    def _num_held(self) -> Counter[str]:
        """The pages that each tenant's running requests hold."""
        held: Counter[str] = Counter()
        for state in self.running.values():
            held[state.request.tenant] += len(state.page_table)
        return held

    def _is_within_share(self, state: RequestState, num_pages: int) -> bool:
        """Whether its tenant holds no more than an equal part of the pages with so many more."""
        num_held = self._num_held()[state.request.tenant] + num_pages
        return num_held <= self._pool.num_pages // self.num_tenants

    def _preempt(self, victim: RequestState, *, in_flight: bool) -> None:
        if in_flight:
            raise PlanInFlight
        self.free_index(self.remove(victim))
        self._spot_checker.forget(victim)
        victim.preempt()
        self.enqueue(victim)

    def _match(self, state: RequestState) -> PrefixMatch:
        """The request's match in the prefix cache."""
        if not self._config.prefix_cache:
            return self._prefix_cache.no_match()
        return state.prefix_cursor.match(state.tokens.ids(0, state.cacheable_len))

    def _is_worth_waiting(self, match: PrefixMatch) -> bool:
        """Whether the request of this match had better wait for its leader."""
        if match.leader is None:
            return False
        num_shared = match.leader_len - len(match.pages) * self._pool.page_size
        num_passes = 2 if self._config.async_scheduling else 1  # results are read one pass later
        return is_sooner_shared(
            num_shared, match.leader.num_forgone, num_passes * self._config.reference_tokens
        )

    def _start(self, state: RequestState, step: int) -> None:
        tenant = state.request.tenant
        self._num_running[tenant] += 1
        self._num_admissions += 1
        self._last_admitted[tenant] = self._num_admissions
        state.admitted_at, state.admitted_len = step, state.tokens.committed_len
        if state.short_since is not None and step - state.short_since >= PATIENCE_STEPS:
            state.short_since, state.protected_until = None, step + PATIENCE_STEPS
        if self._config.async_scheduling:
            state.request_index = self._free_indices.pop()
        self.running[state.request_id] = state
        self._by_arrival = None

    def remove(self, state: RequestState) -> int:
        """The request no longer runs. Returns its request index, which the caller frees, or -1."""
        if self.running.pop(state.request_id, None) is None:
            return -1
        self._by_arrival = None
        self._forget(state.request.tenant)
        request_index, state.request_index = state.request_index, -1
        return request_index

    def _forget(self, tenant: str) -> None:
        """One request less of this tenant runs."""
        self._num_running[tenant] -= 1
        if not self._num_running[tenant]:
            del self._num_running[tenant]
        if len(self._last_admitted) > 2 * self._num_request_indices:
            live = self._num_running.keys() | set(self.waiting.tenants)
            self._last_admitted = {one: when for one, when in self._last_admitted.items() if one in live}

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
        self, state: RequestState, length: int, planned: Collection[int], step: int, *, in_flight: bool
    ) -> bool:
        """Grow the request's page table. While pages are short, preempt the youngest request that
        is not in this plan, the request itself at last; first of the tenant that holds the most
        pages, if that is more than an equal part. False: it is not running any more."""
        if not self.is_running(state):
            return False
        while state.page_table.num_missing(length) > self._pool.num_available:
            unplanned = [other for other in self.running.values() if other.request_id not in planned]
            unplanned = [other for other in unplanned if step >= other.protected_until] or unplanned
            victim = None
            if self.num_tenants > 1:
                share = self._pool.num_pages // self.num_tenants
                victim = _youngest_of_largest(unplanned, self._num_held(), share)
            if victim is None:
                victim = max(unplanned, key=lambda other: other.request_id)
            self._preempt(victim, in_flight=in_flight)
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


def _youngest_of_largest(
    states: Collection[RequestState], held: Counter[str], least: int
) -> RequestState | None:
    """The youngest request of the tenant that holds the most pages, of those with more than the
    least."""
    return max(
        (state for state in states if held[state.request.tenant] > least),
        key=lambda state: (held[state.request.tenant], state.request.tenant, state.request_id),
        default=None,
    )
