"""Deficit round robin: a queue for each client, and turns between the clients.

In its turn a client may take items whose costs its deficit covers; every turn adds a quantum. So
clients that always have items waiting get the same cost per time, whatever their number of items
and the size of each. The real cost of an item may be known only afterwards (`charge`): a client
that is in debt passes until enough turns have paid for it. A queue without rivals never waits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

_MAX_DEBTORS = 4096

T = TypeVar("T")


@dataclass
class _Client(Generic[T]):
    deficit: float = 0.0
    items: deque[tuple[T, float]] = field(default_factory=deque)  # with their costs


class FairQueue(Generic[T]):
    """Waiting items. Not thread-safe. An item is waiting at most once."""

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._clients: dict[str, _Client[T]] = {}
        self._turns: deque[str] = deque()  # the clients with waiting items; the first has its turn
        self._num_items = 0

    def __len__(self) -> int:
        return self._num_items

    @property
    def cost(self) -> float:
        """Of all waiting items."""
        return sum(cost for client in self._turns for _, cost in self._clients[client].items)

    def num_waiting(self, client: str) -> int:
        return len(self._clients[client].items) if client in self._clients else 0

    def push(self, client: str, item: T, cost: float) -> None:
        state = self._clients.setdefault(client, _Client())
        if not state.items:
            self._turns.append(client)
        state.items.append((item, cost))
        self._num_items += 1

    def pop(self, may_run: Callable[[str], bool] = lambda client: True) -> T | None:
        """The next item of a client that may run, or None."""
        able = [client for client in self._turns if may_run(client)]
        if not able:
            return None
        while True:
            client = self._turns[0]
            state = self._clients[client]
            if may_run(client):
                item, cost = state.items[0]
                if cost <= state.deficit:
                    state.deficit -= cost
                    self._drop_first(client)
                    return item
                state.deficit += self._quantum
            self._turns.rotate(-1)
            if self._turns[0] == able[0]:
                self._skip_empty_turns(able)

    def remove(self, client: str, item: T) -> bool:
        """Drop a waiting item. False: it is not waiting any more."""
        state = self._clients.get(client)
        if state is None:
            return False
        kept = deque(entry for entry in state.items if entry[0] is not item)
        if len(kept) == len(state.items):
            return False
        state.items = kept
        self._num_items -= 1
        self._leave_if_empty(client)
        return True

    def pop_last_of_longest(self) -> T:
        """Drop the newest item of the client that has most waiting."""
        client = max(self._turns, key=self.num_waiting)
        item, _ = self._clients[client].items.pop()
        self._num_items -= 1
        self._leave_if_empty(client)
        return item

    def charge(self, client: str, cost: float) -> None:
        """An item of this client cost so much more, or less, than was said."""
        self._clients.setdefault(client, _Client()).deficit -= cost
        if len(self._clients) > _MAX_DEBTORS:
            self.forgive()

    def forgive(self) -> None:
        """Forget the debts of clients that have nothing waiting."""
        self._clients = {client: self._clients[client] for client in self._turns}

    def _drop_first(self, client: str) -> None:
        self._clients[client].items.popleft()
        self._num_items -= 1
        self._leave_if_empty(client)

    def _leave_if_empty(self, client: str) -> None:
        state = self._clients[client]
        if not state.items:
            self._turns.remove(client)
            state.deficit = min(0.0, state.deficit)  # credit is not saved, a debt is

    def _skip_empty_turns(self, able: list[str]) -> None:
        """Give the turns in which no client could afford its next item, all at once."""
        states = [self._clients[client] for client in able]
        lacks = (state.items[0][1] - state.deficit for state in states)
        num_turns = min(ceil(lack / self._quantum) for lack in lacks) - 1
        if num_turns > 0:
            for state in states:
                state.deficit += num_turns * self._quantum
