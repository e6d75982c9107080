"""The requests that wait, by tenant and by arrival."""

from bisect import insort
from collections.abc import Iterator

from holdfast.scheduler.request_state import RequestState


class WaitingRequests:
    """One queue for each tenant. Iterates over all requests by arrival."""

    def __init__(self) -> None:
        self._queues: dict[str, list[RequestState]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[RequestState]:
        states = [state for queue in self._queues.values() for state in queue]
        return iter(sorted(states, key=lambda state: state.request_id))

    @property
    def tenants(self) -> list[str]:
        """The tenants with waiting requests."""
        return list(self._queues)

    def of(self, tenant: str) -> list[RequestState]:
        """The waiting requests of a tenant, oldest first. The list is shared: do not change it."""
        return self._queues.get(tenant, [])

    def add(self, state: RequestState) -> None:
        insort(self._queues.setdefault(state.request.tenant, []), state, key=lambda other: other.request_id)

    def remove(self, state: RequestState) -> None:
        queue = self._queues[state.request.tenant]
        queue.remove(state)
        if not queue:
            del self._queues[state.request.tenant]
