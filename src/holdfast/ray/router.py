"""The request router of engine replicas, in Ray Serve's interface.

A request is sent to its replica before Ray is called: a `RoutingTable` chooses it, by fingerprint, prefix
and load. This router has Ray call the same replica, and tells the table which replicas there are and how
many requests they have. Ray's own `PrefixCacheAffinityRouter` knows no fingerprints, and compares texts, not tokens.

Ray sends this class to every process by value, with copies of its globals. What it shares with the
process is in `routing_table`, a module, which is sent by name.
"""

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from holdfast.ray import routing_table
from holdfast.ray.messages import RoutedRequest


class EngineRouter(RequestRouter):  # type: ignore[misc]  # Ray is not checked
    """Routes each call to the replica that has its request."""

    @property
    def _table(self) -> routing_table.RoutingTable | None:
        return routing_table.tables.get((self._deployment_id.app_name, self._deployment_id.name))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._tell(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._tell(list(self.curr_replicas.values()))

    def _tell(self, replicas: list[RunningReplica]) -> None:
        if self._table is not None:
            ids = {one.replica_id.unique_id: one.replica_id for one in replicas}
            cache = self.replica_queue_len_cache
            self._table.queue_len = lambda one: (cache.get(ids[one]) if one in ids else 0) or 0
            self._table.on_replicas(replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Choose the replica that has the request. If Ray runs it no more, any other: there the call ends at once."""
        request = None if pending_request is None else _routed(pending_request)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        chosen = [
            one
            for one in candidate_replicas
            if request is not None and one.replica_id.unique_id == request.replica
        ]
        return [chosen or candidate_replicas]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        request = _routed(pending_request)
        if request is not None:
            request.is_routed = replica_id.unique_id == request.replica


def _routed(pending_request: PendingRequest) -> RoutedRequest | None:
    first = pending_request.args[0] if pending_request.args else None
    return first if isinstance(first, RoutedRequest) else None
