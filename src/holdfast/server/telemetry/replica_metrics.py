"""Metrics of the replicas of a pool, each with the label `replica`. A single engine has none."""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.engine.status import EngineStatus
from holdfast.server.ipc.engines import ReplicaStatus

_GAUGES = (
    ("num_requests_running", "Choices that the replica generates, of all frontends.", "num_running"),
    ("num_requests_waiting", "Choices that wait in the replica's queue.", "num_waiting"),
    ("kv_pages_used", "KV pages held by requests.", "num_pages_used"),
    ("kv_pages", "All KV pages of the replica.", "num_pages"),
)


class ReplicaMetrics(Collector):
    """latest are the last numbers of each replica's engine."""

    def __init__(self, latest: Mapping[str, EngineStatus]) -> None:
        self._latest = latest
        self._replicas: Sequence[ReplicaStatus] = ()

    def set_replicas(self, replicas: Sequence[ReplicaStatus]) -> None:
        """The replicas of this moment."""
        self._replicas = replicas

    def collect(self) -> Iterable[Metric]:
        if not self._replicas:
            return
        info = GaugeMetricFamily(
            "holdfast_replica_info",
            "The replicas: 1 if requests go there. deterministic: also those that are deterministic.",
            labels=["replica", "node", "state", "fingerprint", "deterministic"],
        )
        routed = CounterMetricFamily(
            "holdfast_replica_requests",
            "Requests of this frontend that the replica accepted.",
            labels=["replica", "deterministic"],
        )
        for one in self._replicas:
            deterministic = str(one.is_deterministic).lower()
            labels = [one.id, one.node, one.state, one.fingerprint, deterministic]
            info.add_metric(labels, float(one.state == "ready"))
            routed.add_metric([one.id, "true"], one.num_accepted_deterministic)
            routed.add_metric([one.id, "false"], one.num_accepted_ordinary)
        yield info
        yield routed
        for name, help, field in _GAUGES:
            gauge = GaugeMetricFamily(f"holdfast_replica_{name}", help, labels=["replica"])
            for one in self._replicas:
                if one.id in self._latest:
                    gauge.add_metric([one.id], getattr(self._latest[one.id], field))
            yield gauge
