"""All metrics of one server: those of its models and those of its tenants, written as text.

Series of models have the label `model` if there are several. A request that is refused before its body is
read is counted with the model "unknown".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.tenants.tenant import Tenant

_OPENMETRICS = "application/openmetrics-text"
_ANONYMOUS, _UNKNOWN = "anonymous", "unknown"


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
