"""Shares of the engine between holders: places, pages, and the tokens of a step. One holder alone gets
everything, in order of arrival.

**Places and pages.** The holder with the fewest running requests is admitted first; of those with equally
many, the one that was admitted longest ago. A request is preempted for another holder's

    if all places are taken    its holder runs at least two requests more than the other;
                               or one to none, for SLICE_STEPS steps and at least one token
    if pages are short         its holder holds more than an equal part of the pages, and the other
                               does not, nor will; or the other has waited for PATIENCE_STEPS steps,
                               and then runs for as many

These conditions are not true the other way round afterwards, so two holders never preempt each other
in turn.

**Tokens of a step.** The time of a pass of n tokens is about that of reference_tokens + n tokens. Shares
are fair in this measure, not in seconds: no clock decides a plan. A token whose settings cost more than
the model does counts as several (`core/shares.py`).

Of N holders, the one with the least work in a step has w tokens in it. Every other one adds at most
reference_tokens + w, so the step takes at most N times as long as without them; and each of these is
computed at no less than 1/N of the speed it would have alone. So k hostile holders slow another one
down by a factor of at most k + 1.

**Background.** Requests of a background share get places and pages that no other request wants, and give
them up at once. While others run, they are computed in one step of BACKGROUND_STEPS. Alone, a step adds at
most BACKGROUND_PASSES reference passes, and one for BACKGROUND_STEPS steps after another request ran: the next
one, which may come soon, does not wait for a long step.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from holdfast.core.shares import equal_level
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler.request_state import RequestState

SLICE_STEPS = 64
PATIENCE_STEPS = 512
BACKGROUND_STEPS = 64
BACKGROUND_PASSES = 4


class WaitingRequests:
    """The requests that wait: one queue for each holder. Iterates over all of them by arrival."""

    def __init__(self) -> None:
        self._queues: dict[str, list[RequestState]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[RequestState]:
        states = [state for queue in self._queues.values() for state in queue]
        return iter(sorted(states, key=lambda state: state.request_id))

    @property
    def holders(self) -> list[str]:
        return list(self._queues)

    def of(self, holder: str) -> list[RequestState]:
        """Return the waiting requests of a holder, oldest first. The list is shared: do not change it."""
        return self._queues.get(holder, [])

    def add(self, state: RequestState) -> None:
        insort(self._queues.setdefault(state.holder, []), state, key=lambda other: other.request_id)

    def remove(self, state: RequestState) -> None:
        queue = self._queues[state.holder]
        queue.remove(state)
        if not queue:
            del self._queues[state.holder]


class SharePolicy:
    """Whose turn it is, and who gives up a place or pages. It decides; `RequestQueue` acts."""

    def __init__(
        self,
        pool: PagePool,
        waiting: WaitingRequests,
        running: Mapping[int, RequestState],
        max_remembered: int,
    ) -> None:
        """waiting, running: as they are at any time. max_remembered: holders of which it is kept when they
        were admitted last."""
        self._pool = pool
        self._waiting = waiting
        self._running = running
        self._max_remembered = max_remembered
        self._num_running: Counter[str] = Counter()  # by holder
        self._num_background = 0  # of the running requests
        self._others_at = -BACKGROUND_STEPS  # the step in which another request ran or started last
        self._last_admitted: dict[str, int] = {}  # when each holder was, by number of admissions
        self._num_admissions = 0

    @property
    def num_holders(self) -> int:
        """The holders with live requests."""
        return len(self._num_running.keys() | set(self._waiting.holders))

    @property
    def has_background_only(self) -> bool:
        """Return whether every running request is a background request, and there is one."""
        return 0 < self._num_background == len(self._running)

    @property
    def is_shared(self) -> bool:
        """Return whether requests of several holders run."""
        return len(self._num_running) > 1

    def started(self, state: RequestState, step: int) -> None:
        self._num_running[state.holder] += 1
        self._num_background += state.is_background
        if not state.is_background:
            self._others_at = step
        self._num_admissions += 1
        self._last_admitted[state.holder] = self._num_admissions
        if state.short_since is not None and step - state.short_since >= PATIENCE_STEPS:
            state.short_since, state.protected_until = None, step + PATIENCE_STEPS

    def stopped(self, state: RequestState) -> None:
        self._num_running[state.holder] -= 1
        self._num_background -= state.is_background
        if not self._num_running[state.holder]:
            del self._num_running[state.holder]
        if len(self._last_admitted) > self._max_remembered:
            live = self._num_running.keys() | set(self._waiting.holders)
            self._last_admitted = {one: when for one, when in self._last_admitted.items() if one in live}

    def leaves_out_background(self, states: Iterable[RequestState], step: int, *, in_flight: bool) -> bool:
        """Return whether a step computes no background request. states: what could be computed. in_flight:
        another plan is, maybe of requests that come first."""
        others = self._running.values() if in_flight else states
        if all(state.is_background for state in others):
            return False
        self._others_at = step
        return step % BACKGROUND_STEPS != 0

    def background_tokens(self, step: int, reference_tokens: int) -> int:
        """Return how many tokens a step of background requests alone may have."""
        is_quiet = step - self._others_at >= BACKGROUND_STEPS
        return reference_tokens * (BACKGROUND_PASSES if is_quiet else 1)

    # Places

    def next_waiting(self, holders: Collection[str]) -> str:
        """Return the holder whose turn it is."""

        def turn(holder: str) -> tuple[bool, int, int, int]:
            oldest = self._waiting.of(holder)[:1]
            first_id = oldest[0].request_id if oldest else 0
            is_background = bool(oldest) and oldest[0].is_background
            return is_background, self._num_running[holder], self._last_admitted.get(holder, 0), first_id

        return min(holders, key=turn)

    def may_run(self, state: RequestState, num_before: int) -> bool:
        """Return whether the limit of its holder lets the request run, and num_before others that wait."""
        limit = state.request.share.max_running
        return limit is None or self._num_running[state.holder] + num_before < limit

    def place_victim(self, holder: str, step: int) -> RequestState | None:
        """Return the running request that gives up its place for one of this holder, if all are taken."""
        num_own = self._num_running[holder]
        is_background = any(state.is_background for state in self._waiting.of(holder)[:1])
        if not is_background and (deferred := self._background(step)):
            return deferred[-1]
        # The largest holder, its youngest request; of holders with one request each, the one that ran longest.
        victim = max(
            self._preemptible(is_background, step) if num_own < len(self._running) else (),
            key=lambda other: (
                num := self._num_running[other.holder],
                -other.admitted_at if num == 1 else other.request_id,
            ),
            default=None,
        )
        if victim is None:
            return None
        num_others = self._num_running[victim.holder]
        is_over = (
            num_own == 0
            and num_others == 1
            and step - victim.admitted_at >= SLICE_STEPS
            and victim.has_progressed
        )
        return victim if num_others >= num_own + 2 or is_over else None

    # Pages

    def may_grow(self, state: RequestState, num_pages: int) -> bool:
        """Return whether the request's holder would hold at most an equal part of the pages with these more."""
        num_held = self._num_held()[state.holder] + num_pages
        return num_held <= self._pool.num_pages // self.num_holders

    def page_victim(self, state: RequestState, num_pages: int, step: int) -> RequestState | None:
        """Return the running request that gives up its pages for this one, which waits for `num_pages`."""
        if self.num_holders < 2:
            return None
        if not state.is_background and (deferred := self._background(step)):
            return deferred[-1]
        if state.short_since is None:
            state.short_since = step
        if step - state.short_since >= PATIENCE_STEPS:
            least = 0
        elif self.may_grow(state, num_pages + len(self._running)):
            least = self._pool.num_pages // self.num_holders
        else:
            return None
        others = [
            other
            for other in self._preemptible(state.is_background, step)
            if other.holder != state.holder and (least or other.has_progressed)
        ]
        return self._youngest_of_largest(others, least)

    def growth_victim(self, states: Sequence[RequestState], step: int) -> RequestState:
        """Return which of these gives up its pages for a running request: the youngest of the holder that
        holds the most, if that is more than an equal part; else the youngest of all."""
        states = [other for other in states if other.is_background] or states
        states = [other for other in states if step >= other.protected_until] or states
        victim = None
        if self.num_holders > 1:
            victim = self._youngest_of_largest(states, self._pool.num_pages // self.num_holders)
        return max(states, key=lambda other: other.request_id) if victim is None else victim

    def _background(self, step: int) -> list[RequestState]:
        """Return the background requests that may be preempted, the youngest last."""
        found = [
            state for state in self._running.values() if state.is_background and step > state.admitted_at
        ]
        return sorted(found, key=lambda state: state.request_id)

    def _preemptible(self, is_background: bool, step: int) -> list[RequestState]:
        """Return the requests that may be preempted for a waiting one: for one in the background only such."""
        return [state for state in self._unprotected(step) if state.is_background or not is_background]

    def _unprotected(self, step: int) -> list[RequestState]:
        """Return the requests that may be preempted for a waiting one."""
        return [
            state
            for state in self._running.values()
            if step >= state.protected_until and step > state.admitted_at
        ]

    def _num_held(self) -> Counter[str]:
        """Return the pages that each holder's running requests hold."""
        held: Counter[str] = Counter()
        for state in self._running.values():
            held[state.holder] += len(state.page_table)
        return held

    def _youngest_of_largest(self, states: Iterable[RequestState], least: int) -> RequestState | None:
        """Return the youngest request of the holder with the most pages, if these are more than `least`."""
        held = self._num_held()
        return max(
            (state for state in states if held[state.holder] > least),
            key=lambda state: (held[state.holder], state.holder, state.request_id),
            default=None,
        )


class Quotas:
    """The tokens that each holder may still add to the step that is being planned."""

    def __init__(self, budget: int, quotas: Mapping[str, int] | None = None) -> None:
        """quotas: by holder. None: each may add up to `budget`."""
        self._budget = budget
        self._left = None if quotas is None else dict(quotas)

    @classmethod
    def of(
        cls,
        decoding: Sequence[RequestState],
        prefilling: Sequence[RequestState],
        budget: int,
        reference_tokens: int,
        *,
        is_padded: bool,
    ) -> "Quotas":
        """Give each holder of these requests the same quota, if there are several."""
        demands: dict[str, int] = {}
        for state in decoding:
            demands[state.holder] = demands.get(state.holder, 0) + _decode_cost(state)
        for state in prefilling:
            cost = state.prompt_cost * max(1, state.prefill_len - state.next_start)
            demands[state.holder] = demands.get(state.holder, 0) + cost
        if len(demands) < 2:
            return cls(budget)
        quota = token_quota(demands.values(), budget, reference_tokens, is_padded=is_padded)
        return cls(budget, dict.fromkeys(demands, quota))

    @classmethod
    def of_background(cls, states: Iterable[RequestState], budget: int) -> "Quotas":
        """Give the holders of these background requests equal parts of the budget."""
        holders = {state.holder for state in states}
        return cls(budget, dict.fromkeys(holders, max(1, budget // max(1, len(holders)))))

    def left(self, holder: str, cost: int = 1) -> int:
        """Return how many tokens of this cost the holder may add: at least one if anything is left."""
        if self._left is None:
            return self._budget
        left = self._left.get(holder, 0)
        return max(left // cost, min(left, 1))

    def take(self, holder: str, num_tokens: int, cost: int = 1) -> None:
        if self._left is not None:
            self._left[holder] -= num_tokens * cost

    def choose(
        self, decoding: list[RequestState], prefilling: Sequence[RequestState], step: int
    ) -> list[RequestState]:
        """Return the requests that decode in this step, in the same order: of each holder at least one, and
        what its quota holds beside its prompts. Those that decoded longest ago go first."""
        if self._left is None:
            return decoding
        has_prefill = {state.holder for state in prefilling}
        room = {
            holder: quota - quota // 4 if holder in has_prefill else quota
            for holder, quota in self._left.items()
        }
        chosen: set[int] = set()
        started: set[str] = set()
        for state in sorted(decoding, key=lambda state: (state.last_planned, state.request_id)):
            holder, cost = state.holder, _decode_cost(state)
            if cost <= room[holder] or holder not in started:
                chosen.add(state.request_id)
                started.add(holder)
                state.last_planned = step
                room[holder] -= cost
                self.take(holder, cost)
        return [state for state in decoding if state.request_id in chosen]


def token_quota(demands: Collection[int], budget: int, reference_tokens: int, *, is_padded: bool) -> int:
    """Return the tokens that each of several holders may add to a step, by how many they have to compute.

    is_padded: a pass of the step is padded to a multiple of the reference's batch size, so a quota
    that is not a multiple would cost as much as the next one that is.
    """
    most = reference_tokens + min(demands)
    if is_padded:
        most -= most % reference_tokens
    return max(1, min(equal_level(demands, budget), most))


def _decode_cost(state: RequestState) -> int:
    return state.sampled_cost * (1 + state.tokens.num_candidates)
