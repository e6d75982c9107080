"""The histogram of tokens gives the samples of prometheus_client's own."""

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric

from holdfast.server.telemetry.token_histogram import TokenHistogram

BUCKETS = (0.001, 0.01, 0.25, 1.0)
VALUES = (0.0, 0.001, 0.0011, 0.01, 0.2, 0.25, 0.9, 1.0, 5.0)


def samples(families: list[Metric]) -> dict[tuple[str, str], float]:
    (family,) = families
    assert family.type == "histogram" and family.documentation == "Help."
    return {
        (one.name, str(sorted(one.labels.items()))): one.value
        for one in family.samples
        if not one.name.endswith("_created")
    }


def test_samples_are_those_of_the_library() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = TokenHistogram("x", "Help.", "kind", ours, BUCKETS)
    plain = Histogram("x", "Help.", ("kind",), registry=theirs, buckets=BUCKETS)
    for kind, values in (("a", VALUES), ("b", VALUES[:3]), ("c", ())):
        for value in values:
            fast.labels(kind).observe(value, 2)
            plain.labels(kind).observe(value)
            plain.labels(kind).observe(value)
        plain.labels(kind)
        fast.labels(kind)
    assert samples(list(ours.collect())) == samples(list(theirs.collect()))
