"""What Prometheus is told. The front owns one `Metrics`, with a registry of its own; nothing is process-wide.

Names follow vLLM's, with our prefix. Counters never go backwards: the engine counts since its own start, and here its
increments are added up, so that a new engine process goes on where the last one ended.
"""

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from holdfast.server.ipc.engine_status import EngineStatus
from holdfast.server.telemetry.request_metrics import RequestFamilies, RequestMetrics, RequestSeries

_OPENMETRICS = "application/openmetrics-text"

# The engine's counters: the field of `EngineStatus`, what it is called here, what it means.
_COUNTERS = (
    ("steps", "engine_steps", "Steps: plan, run, absorb."),
    ("fast_passes", "fast_passes", "Passes that propose candidates or answer ordinary requests."),
    ("canonical_passes", "canonical_passes", "Passes whose every row has the reference's bits."),
    ("certified_passes", "certified_passes", "Canonical passes of another shape than the reference's."),
    ("shared_canonical_passes", "shared_canonical_passes", "Canonical passes with rows of several requests."),
    ("rows", "pass_rows", "Rows of all passes, padding included."),
    ("spot_checks", "spot_checks", "Passes that checked the certificate."),
    ("spot_checked_rows", "spot_checked_rows", "Certified rows that were computed again and compared."),
    ("revocations", "revocations", "Spot checks that found the certificate wrong."),
)


class Metrics:
    """Every series of one server. Not safe for several threads: the event loop owns it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._registry = registry = CollectorRegistry()
        self._families = RequestFamilies(registry)
        self._series = {yes: RequestSeries.of(self._families, str(yes).lower()) for yes in (False, True)}

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"holdfast_{name}", help, registry=registry)

        self._running = gauge("num_requests_running", "Answers being computed.")
        self._waiting = gauge("num_requests_waiting", "Answers waiting for a place.")
        self._usage = gauge(
            "kv_cache_usage_perc", "Share of the KV pages held by requests; 1 is all of them."
        )
        self._pages_used = gauge("kv_pages_used", "KV pages held by requests.")
        self._pages_cached = gauge("kv_pages_cached", "KV pages kept only in case they are asked for again.")
        self._pages = gauge("kv_pages", "KV pages in all.")
        self._counters = {
            field: Counter(f"holdfast_{name}", help, registry=registry) for field, name, help in _COUNTERS
        }
        self._seen = dict.fromkeys(self._counters, 0)
        self._restarts = Counter("holdfast_engine_restarts", "Engine processes lost.", registry=registry)
        self._info = Info("holdfast", "What is served.", registry=registry)

    def describe(self, *, version: str, model: str, fingerprint: str, dtype: str, determinism: str) -> None:
        """What is served, once it is known."""
        labels = {"version": version, "model": model, "fingerprint": fingerprint, "dtype": dtype}
        self._info.info(labels | {"determinism": determinism})

    def request(self, deterministic: bool) -> RequestMetrics:
        """A request has arrived. Its latencies count from now."""
        return RequestMetrics(self._series[deterministic], self._clock)

    def refused(self, code: str) -> None:
        """A request got an error before anybody knew whether it was deterministic."""
        self._families.errors.labels("unknown", code).inc()

    def take(self, status: EngineStatus) -> None:
        """News of the engine."""
        self._running.set(status.running)
        self._waiting.set(status.waiting)
        self._usage.set(status.pages_used / max(1, status.num_pages))
        self._pages_used.set(status.pages_used)
        self._pages_cached.set(status.pages_cached)
        self._pages.set(status.num_pages)
        for field, counter in self._counters.items():
            now, before = getattr(status, field), self._seen[field]
            counter.inc(now - before if now >= before else now)  # less than before: it began anew
            self._seen[field] = now

    def engine_restarted(self) -> None:
        """The engine process is gone. Nothing runs, and the next one counts from 0."""
        self._restarts.inc()
        self._seen = dict.fromkeys(self._counters, 0)
        for gauge in (self._running, self._waiting, self._usage, self._pages_used, self._pages_cached):
            gauge.set(0)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Everything as text, and its content type; as OpenMetrics if the Accept header names it."""
        if any(one.partition(";")[0].strip().lower() == _OPENMETRICS for one in accept.split(",")):
            text: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(_WithoutCreated(self._registry)), CONTENT_TYPE_PLAIN_0_0_4


class _WithoutCreated(Collector):
    """The plain format has no place for times of creation; the client library would show each as a gauge."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family
