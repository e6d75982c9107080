"""Percentiles of measured times."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PERCENTS = (50, 90, 99)


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of `count` values, in seconds; all 0 where count is 0."""

    count: int
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Percentiles":
        ordered = sorted(values)
        return cls(len(ordered), *(percentile(ordered, percent) for percent in PERCENTS))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between neighbours; 0 for no values."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
