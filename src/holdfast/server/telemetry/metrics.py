"""The Prometheus metrics of one server, in a registry of its own.

Names follow vLLM's, with the prefix `holdfast_`. Counters never decrease: the engine process counts
from its own start, and its increments are added here, so a restarted engine continues where the
last one ended.
"""

import time
from collections.abc import Callable, Collection, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from holdfast.engine.status import EngineStatus
from holdfast.server.telemetry.replica_metrics import ReplicaMetrics
from holdfast.server.telemetry.request_metrics import RequestMetricFamilies, RequestMetrics, RequestSeries
from holdfast.server.telemetry.tenant_metrics import TenantMetrics
from holdfast.server.tenants.tenant import Tenant

_PAUSE_BUCKETS = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_OPENMETRICS = "application/openmetrics-text"

# The engine's counters: field of `EngineCounters`, metric name, help.
_COUNTERS = (
    ("num_steps", "engine_steps", "Engine steps: schedule, run, process the output."),
    ("num_fast_passes", "fast_passes", "Passes that propose candidates or decode ordinary requests."),
    ("num_canonical_passes", "canonical_passes", "Passes in which every token has the reference's bits."),
    (
        "num_certified_passes",
        "certified_passes",
        "Canonical passes of another batch size than the reference's.",
    ),
    (
        "num_shared_canonical_passes",
        "shared_canonical_passes",
        "Canonical passes with tokens of several requests.",
    ),
    ("num_padded_tokens", "pass_tokens_padded", "Tokens of all passes, padding included."),
    (
        "num_spot_checks",
        "spot_checks",
        "Passes that recompute certified tokens at the reference's batch size.",
    ),
    ("num_spot_checked_tokens", "spot_checked_tokens", "Certified tokens that were recomputed and compared."),
    ("num_revocations", "revocations", "Spot checks that found a mismatch and revoked the certificate."),
)


class Metrics:
    """All metrics of one server. Not thread-safe: only the event loop uses it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._registry = registry = CollectorRegistry()
        self._families = RequestMetricFamilies(registry)
        self._series = {yes: RequestSeries.of(self._families, str(yes).lower()) for yes in (False, True)}

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"holdfast_{name}", help, registry=registry)

        self._running = gauge("num_requests_running", "Choices being generated.")
        self._waiting = gauge("num_requests_waiting", "Choices waiting in the queue.")
        self._usage = gauge("kv_cache_usage_perc", "KV pages held by requests, as a fraction from 0 to 1.")
        self._pages_used = gauge("kv_pages_used", "KV pages held by requests.")
        self._pages_cached = gauge(
            "kv_pages_cached", "KV pages held only by the prefix cache; freed when a request needs them."
        )
        self._pages = gauge("kv_pages", "All KV pages.")
        self._counters = {
            field: Counter(f"holdfast_{name}", help, registry=registry) for field, name, help in _COUNTERS
        }
        self._seen: dict[str, dict[str, int]] = {}  # by replica; "" is the engine process of a single one
        self._latest: dict[str, EngineStatus] = {}
        self._restarts = Counter("holdfast_engine_restarts", "Engine processes that died.", registry=registry)
        self._hangs = Counter(
            "holdfast_engine_hangs", "Engine processes that were killed because they hung.", registry=registry
        )
        self._load_seconds = gauge(
            "engine_load_seconds", "Seconds the last start of the engine process took."
        )
        resumed = Counter(
            "holdfast_requests_resumed",
            "Requests submitted again after their engine process died or their pass failed.",
            ["deterministic"],
            registry=registry,
        )
        self._resumed = {yes: resumed.labels(str(yes).lower()) for yes in (False, True)}
        self._crashed = Counter(
            "holdfast_requests_crashed",
            "Requests given up because the engine failed whenever they ran alone.",
            registry=registry,
        )
        self._pauses = Histogram(
            "holdfast_resume_pause_seconds",
            "From the death of a request's engine process to its next output.",
            buckets=_PAUSE_BUCKETS,
            registry=registry,
        )
        self._info = Info("holdfast", "The served model and its settings.", registry=registry)
        self.tenants = TenantMetrics()
        self.replicas = ReplicaMetrics(self._latest)

    def describe(self, *, version: str, model: str, fingerprint: str, dtype: str, determinism: str) -> None:
        """Set the labels of `holdfast_info`, once they are known."""
        labels = {"version": version, "model": model, "fingerprint": fingerprint, "dtype": dtype}
        self._info.info(labels | {"determinism": determinism})

    def request(self, deterministic: bool) -> RequestMetrics:
        """Start measuring a request. Its latencies count from now."""
        return RequestMetrics(self._series[deterministic], self._clock)

    def refused(self, code: str) -> None:
        """Count a request that was refused before its body was read, so its `deterministic` label
        is unknown.
        """
        self._families.errors.labels("unknown", code).inc()

    def update(self, status: EngineStatus, replica: str = "") -> None:
        """Add the increments of an engine's counters; the gauges are the sum of all engines."""
        self._latest[replica] = status
        self._set_gauges()
        seen = self._seen.setdefault(replica, dict.fromkeys(self._counters, 0))
        for field, counter in self._counters.items():
            now, before = getattr(status.counters, field), seen[field]
            counter.inc(now - before if now >= before else now)  # smaller: a new engine process
            seen[field] = now

    def _set_gauges(self) -> None:
        latest = self._latest.values()
        num_pages = sum(one.num_pages for one in latest)
        used = sum(one.num_pages_used for one in latest)
        self._running.set(sum(one.num_running for one in latest))
        self._waiting.set(sum(one.num_waiting for one in latest))
        self._usage.set(used / max(1, num_pages))
        self._pages_used.set(used)
        self._pages_cached.set(sum(one.num_pages_idle for one in latest))
        if latest:
            self._pages.set(num_pages)

    def keep_replicas(self, replicas: Collection[str]) -> None:
        """Only these replicas are there."""
        for gone in self._latest.keys() - replicas - {""}:
            del self._latest[gone]
            self._seen.pop(gone, None)
        self._set_gauges()

    def engine_restarted(self) -> None:
        """An engine process died. A single one runs no request, and the next process counts from 0."""
        self._restarts.inc()
        self._seen.pop("", None)
        self._latest.pop("", None)
        self._set_gauges()

    def engine_hung(self) -> None:
        self._hangs.inc()

    def engine_loaded(self, seconds: float) -> None:
        self._load_seconds.set(seconds)

    def request_resumed(self, deterministic: bool) -> None:
        """A request was submitted again."""
        self._resumed[deterministic].inc()

    def request_crashed(self) -> None:
        """A request was given up."""
        self._crashed.inc()

    def pause_ended(self, seconds: float) -> None:
        """A request continued, so long after its engine process died."""
        self._pauses.observe(seconds)

    def render(self, accept: str = "", reader: Tenant | None = None) -> tuple[bytes, str]:
        """All metrics as text, with the content type. OpenMetrics if the Accept header names it.

        reader: of the series of tenants it gets those it may see; None gets all.
        """
        shown = _Shown(self._registry, self.replicas, self.tenants, reader)
        if any(one.partition(";")[0].strip().lower() == _OPENMETRICS for one in accept.split(",")):
            text: bytes = openmetrics.generate_latest(shown)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(_WithoutCreated(shown)), CONTENT_TYPE_PLAIN_0_0_4


class _Shown(Collector):
    """The metrics of the server, and those of tenants that the reader may see."""

    def __init__(
        self,
        registry: CollectorRegistry,
        replicas: ReplicaMetrics,
        tenants: TenantMetrics,
        reader: Tenant | None,
    ) -> None:
        self._registry = registry
        self._replicas = replicas
        self._tenants = tenants
        self._reader = reader

    def collect(self) -> Iterable[Metric]:
        yield from self._registry.collect()
        yield from self._replicas.collect()
        yield from self._tenants.seen_by(self._reader)


class _WithoutCreated(Collector):
    """Drops `_created` samples, which the client library would write as gauges in the plain text
    format.
    """

    def __init__(self, shown: Collector) -> None:
        self._shown = shown

    def collect(self) -> Iterable[Metric]:
        for family in self._shown.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family
