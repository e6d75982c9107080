"""The request router of engine replicas, in Ray Serve's interface: fingerprints, prefixes, load.

Ray's own `PrefixCacheAffinityRouter` knows no fingerprints, and compares texts, not tokens.

Ray sends this class to every process by value, with copies of its globals. What it shares with the
process is in `routing_table`, a module, which is sent by name.
"""

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from holdfast.ray import routing_table
from holdfast.ray.messages import RoutedRequest


class EngineRouter(RequestRouter):  # type: ignore[misc]  # Ray is not checked
    """Chooses a replica for each request by the `RoutingTable` of its process."""

    @property
    def _table(self) -> routing_table.RoutingTable | None:
        return routing_table.tables.get((self._deployment_id.app_name, self._deployment_id.name))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        if self._table is not None:
            self._table.on_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        if self._table is not None:
            self._table.on_replicas(tuple(self.curr_replicas.values()))

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas that may compute the request, best first."""
        request = None if pending_request is None else _routed(pending_request)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        if request is None or self._table is None:
            return [candidate_replicas]
        by_id = {one.replica_id.unique_id: one for one in candidate_replicas}
        eligible = self._table.eligible(tuple(by_id), request.fingerprint)
        preferred = [one for one in eligible if one not in request.avoid] or eligible
        loads = {one: self._load(by_id[one]) for one in preferred}
        return [[by_id[one] for one in group] for group in self._table.rank(loads, request.prefix)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        request = _routed(pending_request)
        if request is not None and self._table is not None:
            request.replica = replica_id.unique_id
            self._table.note(request.replica, request.prefix)

    def _load(self, replica: RunningReplica) -> int:
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def _routed(pending_request: PendingRequest) -> RoutedRequest | None:
    first = pending_request.args[0] if pending_request.args else None
    return first if isinstance(first, RoutedRequest) else None
