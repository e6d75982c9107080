"""What the request router of a process knows of the replicas, and whom it tells about them.

Ray makes the router itself, from a class that it imports. The router and the pool of one frontend meet here.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MAX_PREFIXES = 1 << 16
# A replica with the prompt's beginning in its cache is preferred while it has at most so many requests more
# than the least loaded one: a number, and a part of that load.
_MORE_REQUESTS, _MORE_PART = 4, 0.25


@dataclass
class RoutingTable:
    """The replicas to which a frontend is connected, and which beginnings of prompts they have seen."""

    on_replicas: Callable[[Sequence[Any]], None]  # (Ray's `RunningReplica`s)
    fingerprints: dict[str, str] = field(default_factory=dict)  # of connected replicas that take requests
    _seen: "OrderedDict[int, str]" = field(default_factory=OrderedDict)  # prefix -> the last replica

    def eligible(self, replicas: Sequence[str], fingerprint: str | None) -> list[str]:
        """Those that are connected and have this fingerprint; None: any."""
        return [
            one
            for one in replicas
            if one in self.fingerprints and fingerprint in (None, self.fingerprints[one])
        ]

    def rank(self, loads: Mapping[str, int], prefix: Sequence[int]) -> list[list[str]]:
        """Replicas in order of preference: one that has the longest beginning of the prompt in its cache,
        unless it has far more requests than others; then the least loaded."""
        by_load = sorted(loads, key=lambda one: (loads[one], one))
        if not by_load:
            return []
        best = self._holder(loads, prefix)
        least = loads[by_load[0]]
        if best is None or loads[best] > least + max(_MORE_REQUESTS, _MORE_PART * least):
            return [[one] for one in by_load]
        return [[best], *([one] for one in by_load if one != best)]

    def _holder(self, loads: Mapping[str, int], prefix: Sequence[int]) -> str | None:
        for key in reversed(prefix):
            replica = self._seen.get(key)
            if replica in loads:
                return replica
        return None

    def note(self, replica: str, prefix: Sequence[int]) -> None:
        """A request with these beginnings went to this replica."""
        for key in prefix:
            self._seen[key] = replica
            self._seen.move_to_end(key)
        while len(self._seen) > _MAX_PREFIXES:
            self._seen.popitem(last=False)


tables: dict[tuple[str, str], RoutingTable] = {}  # by application and deployment
