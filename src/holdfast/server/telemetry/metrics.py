"""The Prometheus metrics of one model, in a registry of its own, and those of a server as text.

Names follow vLLM's, with the prefix `holdfast_`. Counters never decrease: the engine process counts
from its own start, and its increments are added here, so a restarted engine continues where the
last one ended. The replicas of a pool have series with the label `replica`; a single engine has none.
Series of models have the label `model` if there are several. A request that is refused before its body is
read is counted with the model "unknown".
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from holdfast.engine.status import STEP_SIZES, EngineCounters, EngineStatus
from holdfast.server.ipc.engines import ReplicaStatus
from holdfast.server.telemetry.request_metrics import (
    RequestMetricFamilies,
    RequestMetrics,
    RequestSeries,
    TokenSeries,
)
from holdfast.server.tenants.tenant import Tenant

_PAUSE_BUCKETS = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)

# The latest numbers of the engine, or the sum of all: field of `EngineStatus`, metric name, help.
_GAUGES = (
    ("num_running", "num_requests_running", "Choices being generated."),
    ("num_waiting", "num_requests_waiting", "Choices waiting in the queue."),
    ("num_pages_used", "kv_pages_used", "KV pages held by requests."),
    (
        "num_pages_idle",
        "kv_pages_cached",
        "KV pages held only by the prefix cache; freed when a request needs them.",
    ),
    ("num_pages", "kv_pages", "All KV pages."),
)
# The same of each replica.
_REPLICA_GAUGES = (
    ("num_running", "num_requests_running", "Choices that the replica generates, of all frontends."),
    ("num_waiting", "num_requests_waiting", "Choices that wait in the replica's queue."),
    ("num_pages_used", "kv_pages_used", "KV pages held by requests."),
    ("num_pages", "kv_pages", "All KV pages of the replica."),
)
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
_OPENMETRICS = "application/openmetrics-text"
_ANONYMOUS, _UNKNOWN = "anonymous", "unknown"


class Metrics:
    """All metrics of one model. Not thread-safe: only the event loop uses it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._registry = registry = CollectorRegistry()
        self._families = RequestMetricFamilies(registry)
        self._series = {yes: RequestSeries(self._families, str(yes).lower()) for yes in (False, True)}

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"holdfast_{name}", help, registry=registry)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"holdfast_{name}", help, labels, registry=registry)

        self._gauges = {field: gauge(name, help) for field, name, help in _GAUGES}
        self._usage = gauge("kv_cache_usage_perc", "KV pages held by requests, as a fraction from 0 to 1.")
        self._counters = {field: counter(name, help) for field, name, help in _COUNTERS}
        self._step_tokens = TokenSeries(STEP_SIZES)
        self._seen: dict[str, EngineCounters] = {}  # by replica; "" is the engine process of a single one
        self._latest: dict[str, EngineStatus] = {}
        self._restarts = counter("engine_restarts", "Engine processes that died.")
        self.hangs = counter("engine_hangs", "Engine processes that were killed because they hung.")
        self.load_seconds = gauge("engine_load_seconds", "Seconds the last start of the engine process took.")
        resumed = counter(
            "requests_resumed",
            "Requests submitted again after their engine process died or their pass failed.",
            "deterministic",
        )
        self.resumed = {yes: resumed.labels(str(yes).lower()) for yes in (False, True)}
        self.crashed = counter(
            "requests_crashed", "Requests given up because the engine failed whenever they ran alone."
        )
        self.pauses = Histogram(
            "holdfast_resume_pause_seconds",
            "From the death of a request's engine process to its next output.",
            buckets=_PAUSE_BUCKETS,
            registry=registry,
        )
        self.info = Info("holdfast", "The served model and its settings.", registry=registry)
        self.replicas: Sequence[ReplicaStatus] = ()  # of this moment

    def request(self, deterministic: bool) -> RequestMetrics:
        """Start measuring a request. Its latencies count from now."""
        return RequestMetrics(self._series[deterministic], self._clock)

    def update(self, status: EngineStatus, replica: str = "") -> None:
        """Add the increments of an engine's counters; the gauges are the sum of all engines."""
        self._latest[replica] = status
        self._set_gauges()
        now, before = status.counters, self._seen.get(replica, EngineCounters())
        self._seen[replica] = now
        for field, counter in self._counters.items():
            counter.inc(_growth(getattr(now, field), getattr(before, field)))
        steps = [*map(_growth, now.steps_by_size, before.steps_by_size)]
        self._step_tokens.add(steps, _growth(now.num_tokens, before.num_tokens))

    def _set_gauges(self) -> None:
        latest = self._latest.values()
        sums = {field: sum(getattr(one, field) for one in latest) for field in self._gauges}
        for field, gauge in self._gauges.items():
            if latest or field != "num_pages":  # a restart does not change it
                gauge.set(sums[field])
        self._usage.set(sums["num_pages_used"] / max(1, sums["num_pages"]))

    def keep_replicas(self, replicas: Collection[str]) -> None:
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

    def collect(self) -> list[Metric]:
        """Return all families as they are now."""
        return [*self._registry.collect(), self._of_steps(), *self._of_replicas()]

    def _of_steps(self) -> Metric:
        family = HistogramMetricFamily(
            "holdfast_iteration_tokens_total", "Tokens of the passes of an engine step, without padding."
        )
        family.add_metric((), self._step_tokens.cumulative(), self._step_tokens.sum)
        return family

    def _of_replicas(self) -> Iterator[Metric]:
        if not self.replicas:
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
        for one in self.replicas:
            deterministic = str(one.is_deterministic).lower()
            labels = [one.id, one.node, one.state, one.fingerprint, deterministic]
            info.add_metric(labels, float(one.state == "ready"))
            routed.add_metric([one.id, "true"], one.num_accepted_deterministic)
            routed.add_metric([one.id, "false"], one.num_accepted_ordinary)
        yield from (info, routed)
        for field, name, help in _REPLICA_GAUGES:
            gauge = GaugeMetricFamily(f"holdfast_replica_{name}", help, labels=["replica"])
            for one in self.replicas:
                if one.id in self._latest:
                    gauge.add_metric([one.id], getattr(self._latest[one.id], field))
            yield gauge


def _growth(now: int, before: int) -> int:
    """Return the increment of an engine's counter. A smaller one is that of a new engine process."""
    return now - before if now >= before else now


class ServerMetrics:
    """The metrics of models, by name, and of tenants."""

    def __init__(self, models: Mapping[str, Metrics]) -> None:
        self.tenants = TenantMetrics()
        self._models = models
        self._registry = CollectorRegistry()
        self._refused = Counter(
            "holdfast_request_errors",
            "Requests that ended in an error, by code.",
            ("deterministic", "code"),
            registry=self._registry,
        )

    def refused(self, code: str) -> None:
        """Count a request that was refused before its body was read: nobody knows whether it is deterministic."""
        self._refused.labels("unknown", code).inc()

    def render(self, accept: str = "", reader: Tenant | None = None) -> tuple[bytes, str]:
        """Return all metrics as text, with the content type. OpenMetrics if the Accept header names it.

        reader: of the series of tenants it gets those it may see; None gets all.
        """
        families = [*self._of_models(), *self.tenants.seen_by(reader)]
        if any(one.partition(";")[0].strip().lower() == _OPENMETRICS for one in accept.split(",")):
            text: bytes = openmetrics.generate_latest(_Shown(families))  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        for family in families:  # the client library would write these as gauges
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
        return generate_latest(_Shown(families)), CONTENT_TYPE_PLAIN_0_0_4

    def _of_models(self) -> Iterable[Metric]:
        """Return the families of all models, joined by name."""
        collected = [(name, one.collect()) for name, one in self._models.items()]
        collected.append((_UNKNOWN, [*self._registry.collect()]))  # a model may have this name, too
        merged: dict[str, Metric] = {}
        for model, families in collected:
            for family in families:
                samples = family.samples
                if len(self._models) > 1:
                    samples = [one._replace(labels={**one.labels, "model": model}) for one in samples]
                first = merged.setdefault(family.name, family)
                first.samples = samples if first is family else [*first.samples, *samples]
        return merged.values()


class TenantMetrics:
    """What each tenant uses, with the label `tenant`: the name of its key, or "anonymous" without a key.

    Names come from the operator's key file or number its keys, so their number is bounded; neither a
    key nor an address is ever a label. A tenant sees its own series only, an admin all of them.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"holdfast_tenant_{name}", help, ("tenant", *labels), registry=registry)

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"holdfast_tenant_{name}", help, ("tenant",), registry=registry)

        self._requests = counter("requests", "Requests of a tenant that have ended, refused ones too.")
        self._refused = counter(
            "requests_refused", "Requests of a tenant that got an error, by code.", "code"
        )
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of a tenant's requests.")
        self._generation_tokens = counter("generation_tokens", "Generated tokens of a tenant's requests.")
        self._running = gauge("num_requests_running", "Choices of a tenant being generated.")
        self._waiting = gauge("num_requests_waiting", "Choices of a tenant that wait.")
        self._placed: set[str] = set()  # the labels that have had places

    def ended(
        self, tenant: Tenant, *, refusal: str | None, num_prompt_tokens: int, num_generated_tokens: int
    ) -> None:
        """A request has ended. refusal: the code of its error, if it got one in place of an answer."""
        label = _label(tenant)
        self._requests.labels(label).inc()
        self._prompt_tokens.labels(label).inc(num_prompt_tokens)
        self._generation_tokens.labels(label).inc(num_generated_tokens)
        if refusal is not None:
            self._refused.labels(label, refusal).inc()

    def set_places(self, places: Iterable[tuple[Tenant, int, int]]) -> None:
        """The answers that run and those that wait, of each request that is being answered."""
        for label in self._placed:  # a tenant that has none any more is at 0
            self._running.labels(label).set(0)
            self._waiting.labels(label).set(0)
        for tenant, num_running, num_waiting in places:
            label = _label(tenant)
            self._placed.add(label)
            self._running.labels(label).inc(num_running)
            self._waiting.labels(label).inc(num_waiting)

    def seen_by(self, tenant: Tenant | None = None) -> Iterator[Metric]:
        """Return the series that a tenant may see; None: all."""
        label = None if tenant is None or tenant.is_admin else _label(tenant)
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if label in (None, one.labels["tenant"])]
            yield family


def _label(tenant: Tenant) -> str:
    return tenant.name if tenant.has_key else _ANONYMOUS


class _Shown(Collector):
    """Families for the client library's writers."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
