"""Metrics of resumable streams."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class StreamMetrics:
    """Used by the event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.resumed = Counter(
            "holdfast_streams_resumed", "Connections that resumed a stream.", registry=registry
        )
        self.abandoned = Counter(
            "holdfast_streams_abandoned",
            "Resumable streams that were aborted because no client came back in time.",
            registry=registry,
        )
        self.kept = Gauge("holdfast_streams_kept", "Streams that can be resumed.", registry=registry)
        self.detached = Gauge(
            "holdfast_streams_detached", "Streams that go on without a client.", registry=registry
        )
        self.num_bytes = Gauge(
            "holdfast_streams_kept_bytes", "Memory of the streams that can be resumed.", registry=registry
        )
