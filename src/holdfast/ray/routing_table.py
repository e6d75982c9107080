"""Which replica computes a request: one that has the prompt's beginning in its cache, or the least loaded.

Ray makes its router itself, from a class that it imports. The router and the pool of one frontend meet here.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MAX_PREFIXES = 1 << 16
# A replica with the prompt's beginning in its cache is preferred while it has at most so many requests more
# than the least loaded one: a number, and a part of that load.
_MORE_REQUESTS, _MORE_PART = 4, 0.25


def _ignore(replicas: Sequence[Any]) -> None:
    pass


def _unknown(replica: str) -> int:
    return 0


@dataclass
class RoutingTable:
    """Keep which beginnings of prompts the replicas have seen, and how many requests they have.

    Ray's router sets queue_len: the requests of a replica, of all frontends, as Ray last heard.
    """

    on_replicas: Callable[[Sequence[Any]], None] = _ignore  # (Ray's `RunningReplica`s)
    queue_len: Callable[[str], int] = _unknown
    _seen: "OrderedDict[int, str]" = field(default_factory=OrderedDict)  # prefix -> the last replica

    def choose(self, own: Mapping[str, int], prefix: Sequence[int]) -> str:
        """Choose the replica for a request with these beginnings. own: the candidates, and how many requests of
        this frontend each has."""
        loads = {one: max(number, self.queue_len(one)) for one, number in own.items()}
        chosen = min(loads, key=lambda one: (loads[one], one))
        holder, least = self._holder(loads, prefix), loads[chosen]
        if holder is not None and loads[holder] <= least + max(_MORE_REQUESTS, _MORE_PART * least):
            chosen = holder
        self._note(chosen, prefix)
        return chosen

    def _holder(self, loads: Mapping[str, int], prefix: Sequence[int]) -> str | None:
        for key in reversed(prefix):
            replica = self._seen.get(key)
            if replica in loads:
                return replica
        return None

    def _note(self, replica: str, prefix: Sequence[int]) -> None:
        for key in prefix:
            self._seen[key] = replica
            self._seen.move_to_end(key)
        while len(self._seen) > _MAX_PREFIXES:
            self._seen.popitem(last=False)


tables: dict[tuple[str, str], RoutingTable] = {}  # by application and deployment
