"""Who waits, who runs, and who gives way when pages are short.

The oldest request comes first everywhere, and gives way only to what is already in the same plan, so nobody starves. While a
plan is in flight nobody gives way: whoever lacks pages then asks again when it is over.
"""

from bisect import insort
from collections.abc import Collection

from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.prefix_cache import PrefixCache
from holdfast.scheduler.phase import Phase
from holdfast.scheduler.policy import SchedulerConfig, may_admit
from holdfast.scheduler.request_state import RequestState
from holdfast.scheduler.spot_checks import SpotChecker


class OutOfPages(Exception):
    """Pages are short while a plan is in flight."""


class RequestQueue:
    """The live sequences: a queue by arrival, and those that hold pages and a lane."""

    def __init__(
        self, config: SchedulerConfig, pool: PagePool, index: PrefixCache, watch: SpotChecker
    ) -> None:
        self._config = config
        self._pool = pool
        self._index = index
        self._spot_checker = watch
        self._ordered: list[RequestState] | None = []
        # Those of sequences that ended in a plan in flight are taken until it is over.
        self.num_request_indices = config.max_num_seqs * (1 + config.async_scheduling)
        self._free_lanes = list(range(self.num_request_indices - 1, -1, -1))
        self.queue: list[RequestState] = []  # by arrival
        self.running: dict[int, RequestState] = {}
        self.num_synchronous = 0  # of those that run

    def admit(self, *, in_flight: bool) -> None:
        """Start what is waiting, in order, as long as there is room."""
        for seq in tuple(self.queue):
            if len(self.running) >= self._config.max_num_seqs:
                break
            if self._waits_for_leader(seq):
                continue
            length = seq.tokens.committed_len
            pages, node, num_canonical = (
                self._index.match(seq.tokens.ids(0, seq.cacheable_len), canonical_only=seq.deterministic)
                if self._config.prefix_cache
                else ([], self._index.root, 0)
            )
            needed = self._pool.pages_for(length) - len(pages)
            if not may_admit(needed, self._pool.num_available, len(self.running)):
                for page in reversed(pages):
                    self._pool.drop(page)
                break
            self.queue.remove(seq)
            if seq.thoughts is not None:
                seq.thoughts.adopt(self._index.thoughts(node, pages))
            seq.admit(pages, node, num_canonical)
            seq.page_table.grow(length)
            self._start(seq)
        idle = not self.running and not in_flight  # a check and what is in flight hold pages, for a step
        assert not (idle and self.queue), "an idle engine must be able to admit"

    def _start(self, seq: RequestState) -> None:
        if self._config.async_scheduling:
            seq.request_index = self._free_lanes.pop()
        self.running[seq.request_id] = seq
        self.num_synchronous += seq.is_synchronous
        self._ordered = None

    def remove(self, seq: RequestState) -> int:
        """It runs no more. Returns its lane, which the caller gives back."""
        if self.running.pop(seq.request_id, None) is None:
            return -1
        self.num_synchronous -= seq.is_synchronous
        self._ordered = None
        lane, seq.request_index = seq.request_index, -1
        return lane

    def free_lane(self, lane: int) -> None:
        """No plan in flight names it any more."""
        if lane >= 0:
            assert lane not in self._free_lanes, "a lane is free twice"
            self._free_lanes.append(lane)

    def _waits_for_leader(self, seq: RequestState) -> bool:
        """Whether another answer to the same prompt is just computing pages this one can share."""
        leader = self.running.get(seq.request.leader) if seq.request.leader is not None else None
        shares = self._config.prefix_cache and seq.cacheable_len >= self._pool.page_size
        return shares and leader is not None and leader.phase is Phase.PREFILL

    def split(self) -> tuple[list[RequestState], list[RequestState]]:
        """Running sequences by arrival, less those that wait for a result: those that decode, those that prefill."""
        decoding: list[RequestState] = []
        prefilling: list[RequestState] = []
        for seq in self.by_arrival():
            if seq.flying and seq.waits:
                continue
            (prefilling if seq.phase is Phase.PREFILL and not seq.ahead else decoding).append(seq)
        return decoding, prefilling

    def by_arrival(self) -> list[RequestState]:
        """Not to be changed, and not to be kept."""
        if self._ordered is None:
            self._ordered = [self.running[request_id] for request_id in sorted(self.running)]
        return self._ordered

    def is_running(self, seq: RequestState) -> bool:
        return seq.request_id in self.running

    def make_room(self, seq: RequestState, length: int, planned: Collection[int], *, in_flight: bool) -> bool:
        """Give the sequence its next slots, preempting the youngest unplanned one (itself at last) while pages lack."""
        if not self.is_running(seq):
            return False
        while seq.page_table.num_missing(length) > self._pool.num_available:
            if in_flight:
                raise OutOfPages
            victim = self.running[max(request_id for request_id in self.running if request_id not in planned)]
            self.free_lane(self.remove(victim))
            self._spot_checker.forget(victim)
            victim.preempt()
            self.enqueue(victim)
            if victim is seq:
                return False
        seq.page_table.grow(length)
        return True

    def enqueue(self, seq: RequestState) -> None:
        insort(self.queue, seq, key=lambda queued: queued.request_id)

    def check_lanes(self, leftover: Collection[int]) -> None:
        """Raise unless every lane is free, or one sequence's, or that of one that ended in flight."""
        held = [seq.request_index for seq in self.running.values() if seq.request_index >= 0]
        assert len(held) == (len(self.running) if self._config.async_scheduling else 0)
        lanes = [*held, *self._free_lanes, *(lane for lane in leftover if lane >= 0)]
        assert sorted(lanes) == list(range(self.num_request_indices)), "a lane leaked, or has two holders"
