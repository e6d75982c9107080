"""A queue for each client, and turns between the clients.

A client's turn comes when the costs of what it has taken are the least, counted from when it last had
nothing waiting. So clients that always have items waiting get the same cost per time, whatever the
number and the size of their items. A queue without rivals never waits, and a client that comes back
starts at the level of those that are served then: nothing is saved, and nothing is owed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_LEAST_COST = 1e-6  # an item of no cost would not end its client's turn

T = TypeVar("T")


@dataclass
class _Client(Generic[T]):
    taken: float  # the costs of its items so far, from the level at which it began
    items: deque[tuple[T, float]] = field(default_factory=deque)  # with their costs


class FairQueue(Generic[T]):
    """Waiting items. Not thread-safe."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}  # that have waiting items
        self._level = 0.0  # what the client that was served last had taken

    def __len__(self) -> int:
        return sum(len(client.items) for client in self._clients.values())

    @property
    def cost(self) -> float:
        """Of all waiting items."""
        return sum(cost for client in self._clients.values() for _, cost in client.items)

    def push(self, client: str, item: T, cost: float) -> None:
        self._clients.setdefault(client, _Client(self._level)).items.append((item, max(cost, _LEAST_COST)))

    def pop(self, may_run: Callable[[str], bool] = lambda client: True) -> T | None:
        """Return the next item of a client that may run, or None."""
        able = [client for client in self._clients if may_run(client)]
        if not able:
            return None
        client = min(able, key=lambda one: self._clients[one].taken)
        state = self._clients[client]
        item, cost = state.items.popleft()
        self._level = max(self._level, state.taken)
        state.taken += cost
        self._forget_if_empty(client)
        return item

    def charge(self, client: str, cost: float) -> None:
        """An item of this client cost so much more than was said."""
        if client in self._clients:
            self._clients[client].taken += cost

    def remove(self, client: str, item: T) -> None:
        """Drop an item, if it is still waiting."""
        if client in self._clients:
            state = self._clients[client]
            state.items = deque(entry for entry in state.items if entry[0] is not item)
            self._forget_if_empty(client)

    def pop_last_of_longest(self) -> T:
        """Drop the newest item of the client that has most waiting."""
        client = max(self._clients, key=lambda one: len(self._clients[one].items))
        item, _ = self._clients[client].items.pop()
        self._forget_if_empty(client)
        return item

    def _forget_if_empty(self, client: str) -> None:
        if not self._clients[client].items:
            del self._clients[client]
