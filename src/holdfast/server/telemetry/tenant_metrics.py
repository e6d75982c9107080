"""What each tenant uses, with the label `tenant`: the name of its key, or "anonymous" without a key.

Names come from the operator's key file or number its keys, so their number is bounded; neither a key
nor an address is ever a label. A tenant sees its own series only, an admin all of them.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.server.tenants.tenant import Tenant

_ANONYMOUS = "anonymous"
_LABEL = "tenant"


def tenant_label(tenant: Tenant) -> str:
    return tenant.name if tenant.has_key else _ANONYMOUS


class TenantMetrics(Collector):
    """The series of all tenants. Used by the event loop only."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"holdfast_tenant_{name}", help, (_LABEL, *labels), registry=registry)

        self._requests = counter("requests", "Requests of a tenant that have ended, refused ones too.")
        self._refused = counter(
            "requests_refused", "Requests of a tenant that got an error, by code.", "code"
        )
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of a tenant's requests.")
        self._generation_tokens = counter("generation_tokens", "Generated tokens of a tenant's requests.")
        self._places: dict[str, tuple[int, int]] = {}  # answers that run and wait, by label

    def ended(
        self, tenant: Tenant, *, refusal: str | None, num_prompt_tokens: int, num_generated_tokens: int
    ) -> None:
        """A request has ended. refusal: the code of its error, if it got one in place of an answer."""
        label = tenant_label(tenant)
        self._requests.labels(label).inc()
        self._prompt_tokens.labels(label).inc(num_prompt_tokens)
        self._generation_tokens.labels(label).inc(num_generated_tokens)
        if refusal is not None:
            self._refused.labels(label, refusal).inc()

    def set_places(self, places: Iterable[tuple[Tenant, int, int]]) -> None:
        """The answers that run and those that wait, of each request that is being answered."""
        sums = dict.fromkeys(self._places, (0, 0))  # a tenant that has none any more is at 0
        for tenant, num_running, num_waiting in places:
            label = tenant_label(tenant)
            running, waiting = sums.get(label, (0, 0))
            sums[label] = running + num_running, waiting + num_waiting
        self._places = sums

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
        running = GaugeMetricFamily(
            "holdfast_tenant_num_requests_running", "Choices of a tenant being generated.", labels=(_LABEL,)
        )
        waiting = GaugeMetricFamily(
            "holdfast_tenant_num_requests_waiting", "Choices of a tenant that wait.", labels=(_LABEL,)
        )
        for label, (num_running, num_waiting) in self._places.items():
            running.add_metric((label,), num_running)
            waiting.add_metric((label,), num_waiting)
        yield from (running, waiting)

    def seen_by(self, tenant: Tenant | None) -> Iterator[Metric]:
        """The series that a tenant may see; None: all."""
        label = None if tenant is None or tenant.is_admin else tenant_label(tenant)
        for family in self.collect():
            family.samples = [one for one in family.samples if label in (None, one.labels[_LABEL])]
            yield family
