"""The slots of recurrent states: which are free, which requests use, which are kept for reuse.

    free      its content is not worth keeping
    running   a running request's own state. There is always a slot for each of max_running requests
    lent      for a while: a state that a pass in flight saves, one that a request starts from, or one that a
              spot check starts from
    kept      a state at the end of a cached page; given up least recently used first, or with its page

A slot may be used again as soon as it is given back: passes run in the order in which they are planned.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from holdfast.errors import ConfigError


@dataclass(eq=False, slots=True)
class KeptState:
    """A state in the prefix cache. slot: -1 once it is given up. num_readers: requests that start from it.
    has_page: its page is still cached."""

    slot: int
    num_readers: int = 0
    has_page: bool = True


class StatePool:
    """The slots 0 .. num_slots - 1."""

    def __init__(self, num_slots: int, max_running: int) -> None:
        if num_slots < max_running:
            raise ConfigError(f"{max_running} requests need as many recurrent states; there are {num_slots}")
        self.num_slots = num_slots
        self._max_lent = num_slots - max_running
        self._num_lent = 0
        self._free = list(range(num_slots - 1, -1, -1))
        self._kept: OrderedDict[int, KeptState] = OrderedDict()  # without readers

    def take(self) -> int:
        """Return a slot for a running request."""
        if self._free:
            return self._free.pop()
        assert self._kept, "more requests run than there are states for"
        slot, kept = self._kept.popitem(last=False)
        kept.slot = -1
        return slot

    def drop(self, slot: int) -> None:
        """Take back the slot of a running request."""
        self._free.append(slot)

    def lend(self) -> int:
        """Return a slot that is not a running request's, or -1 if too many are lent."""
        if self._num_lent >= self._max_lent:
            return -1
        self._num_lent += 1
        return self.take()

    def give_back(self, slot: int) -> None:
        """Take back a slot that was lent."""
        self._num_lent -= 1
        self._free.append(slot)

    def keep(self, slot: int) -> KeptState:
        """Keep what is in a slot that was lent."""
        self._num_lent -= 1
        kept = self._kept[slot] = KeptState(slot)
        return kept

    def read(self, kept: KeptState) -> bool:
        """Hold a kept state for a request that starts from it. Return False if too many slots are lent."""
        if kept.num_readers == 0:
            if kept.slot < 0 or self._num_lent >= self._max_lent:
                return False
            self._num_lent += 1
            del self._kept[kept.slot]
        kept.num_readers += 1
        return True

    def end_read(self, kept: KeptState) -> None:
        """Let go of a state that was held."""
        kept.num_readers -= 1
        if kept.num_readers == 0:
            self._num_lent -= 1
            self._kept[kept.slot] = kept
            if not kept.has_page:
                self.forget(kept)

    def forget(self, kept: KeptState) -> None:
        """Give up a kept state with its page, once nobody reads it."""
        kept.has_page = False
        if kept.num_readers == 0 and kept.slot >= 0:
            del self._kept[kept.slot]
            self._free.append(kept.slot)
            kept.slot = -1

    def check(self, running: Collection[int], lent: Collection[int], read: Collection[KeptState]) -> None:
        """Raise unless every slot is in exactly one state. read: those that requests start from."""
        held = {kept.slot for kept in read}
        assert self._num_lent == len(lent) + len(held), "slots were lent and not given back"
        slots = [*self._free, *self._kept, *running, *lent, *held]
        assert sorted(slots) == list(range(self.num_slots)), "a slot of a state leaked, or is used twice"
        for slot, kept in self._kept.items():
            assert kept.slot == slot and kept.num_readers == 0 and kept.has_page
        assert all(kept.num_readers == sum(one is kept for one in read) for kept in read)
