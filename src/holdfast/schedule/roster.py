"""Who waits, who runs, and who gives way when pages are short.

The oldest request comes first everywhere, and gives way only to what is already in the same plan, so nobody starves.
"""

from bisect import insort

from holdfast.core.phase import Phase
from holdfast.core.plan import Span
from holdfast.kv.pool import PagePool
from holdfast.kv.prefix import PrefixIndex
from holdfast.schedule.policy import SchedulerConfig, may_admit
from holdfast.schedule.sequence import Sequence
from holdfast.schedule.watch import Watch


class Roster:
    """The live sequences: a queue by arrival, and those that hold pages."""

    def __init__(self, config: SchedulerConfig, pool: PagePool, index: PrefixIndex, watch: Watch) -> None:
        self._config = config
        self._pool = pool
        self._index = index
        self._watch = watch
        self.queue: list[Sequence] = []  # by arrival
        self.running: dict[int, Sequence] = {}

    def admit(self) -> None:
        """Start what is waiting, in order, as long as there is room."""
        for seq in tuple(self.queue):
            if len(self.running) >= self._config.max_num_seqs:
                break
            if self._waits_for_leader(seq):
                continue
            length = seq.log.committed_len
            pages, node, num_canonical = (
                self._index.match(seq.log.ids(0, seq.cacheable_len), canonical_only=seq.deterministic)
                if self._config.prefix_cache
                else ([], self._index.root, 0)
            )
            needed = self._pool.pages_for(length) - len(pages)
            if not may_admit(needed, self._pool.num_available, len(self.running)):
                for page in reversed(pages):
                    self._pool.drop(page)
                break
            self.queue.remove(seq)
            seq.admit(pages, node, num_canonical)
            seq.table.grow(length)
            self.running[seq.request_id] = seq
        idle = not self.running and not self._watch.is_due  # a check holds pages, for one step
        assert not (idle and self.queue), "an idle engine must be able to admit"

    def _waits_for_leader(self, seq: Sequence) -> bool:
        """Whether another answer to the same prompt is just computing pages this one can share."""
        leader = self.running.get(seq.request.leader) if seq.request.leader is not None else None
        shares = self._config.prefix_cache and seq.cacheable_len >= self._pool.page_size
        return shares and leader is not None and leader.phase is Phase.PREFILL

    def split(self) -> tuple[list[Sequence], list[Sequence]]:
        """Running sequences by arrival: those that decode, those that prefill."""
        running = self.by_arrival()
        return (
            [seq for seq in running if seq.phase is not Phase.PREFILL],
            [seq for seq in running if seq.phase is Phase.PREFILL],
        )

    def by_arrival(self) -> list[Sequence]:
        return [self.running[request_id] for request_id in sorted(self.running)]

    def is_running(self, seq: Sequence) -> bool:
        return seq.request_id in self.running

    def make_room(self, seq: Sequence, length: int, planned: dict[int, Span]) -> bool:
        """Give the sequence its next slots, preempting the youngest unplanned one (itself at last) while pages lack."""
        if not self.is_running(seq):
            return False
        while seq.table.num_missing(length) > self._pool.num_available:
            victim = self.running[max(request_id for request_id in self.running if request_id not in planned)]
            del self.running[victim.request_id]
            self._watch.forget(victim)
            victim.preempt()
            self.enqueue(victim)
            if victim is seq:
                return False
        seq.table.grow(length)
        return True

    def enqueue(self, seq: Sequence) -> None:
        insort(self.queue, seq, key=lambda queued: queued.request_id)
