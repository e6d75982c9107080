"""A histogram that is observed for every token.

prometheus_client's own takes a lock and walks its buckets for each value: an eighth of the CPU time of a
streamed token. Only the event loop observes this one, so it needs no lock.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString


class TokenSeries:
    """The histogram at one value of the label."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.created = time.time()

    def observe(self, value: float, count: int = 1) -> None:
        """Observe a value so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def cumulative(self) -> list[tuple[str, float]]:
        """The number of values up to each bound."""
        total, found = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append((floatToGoString(bound), float(total)))  # type: ignore[no-untyped-call]
        return found

    @property
    def sum(self) -> float:
        return self._sum


class TokenHistogram(Collector):
    """One series for each value of one label."""

    def __init__(
        self, name: str, help: str, label: str, registry: CollectorRegistry, buckets: Sequence[float]
    ) -> None:
        self._name, self._help, self._label = name, help, label
        self._buckets = tuple(buckets)
        self._series: dict[str, TokenSeries] = {}
        registry.register(self)

    def labels(self, value: str) -> TokenSeries:
        return self._series.setdefault(value, TokenSeries(self._buckets))

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=(self._label,))
        for value, series in self._series.items():
            family.add_metric((value,), series.cumulative(), series.sum)
            family.add_sample(f"{self._name}_created", {self._label: value}, series.created)
        yield family
