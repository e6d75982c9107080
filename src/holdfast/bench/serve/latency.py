"""What clients waited, in percentiles: for the first text, between pieces of text, a token on average, in all.

A piece may hold several tokens (a verified window comes at once), so the time between pieces and the time a token takes
are two things.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.bench.serve.http_client import Heard

PERCENTS = (50, 90, 99)


@dataclass(frozen=True)
class Percentiles:
    """Of `count` values, in seconds; nothing was measured where count is 0."""

    count: int
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Percentiles":
        ordered = sorted(values)
        return cls(len(ordered), *(percentile(ordered, percent) for percent in PERCENTS))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Between its neighbours in proportion, as most tools have it; 0 of nothing."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Latency:
    """One kind of requests."""

    first_text: Percentiles
    between_pieces: Percentiles
    per_token: Percentiles
    end_to_end: Percentiles

    @classmethod
    def of(cls, heard: Sequence[Heard]) -> "Latency":
        """Answers that were left or failed have no end, but what they had counts."""
        whole = [one for one in heard if is_whole(one)]
        return cls(
            Percentiles.of(one.arrivals[0] - one.sent for one in heard if one.arrivals),
            Percentiles.of(gap for one in heard for gap in gaps(one)),
            Percentiles.of(_per_token(one) for one in whole if one.num_tokens > 1 and one.arrivals),
            Percentiles.of(one.ended - one.sent for one in whole),
        )


def _per_token(heard: Heard) -> float:
    return (heard.arrivals[-1] - heard.arrivals[0]) / (heard.num_tokens - 1)


def is_whole(heard: Heard) -> bool:
    """Whether the answer was heard to its end."""
    return heard.error is None and not heard.left


def gaps(heard: Heard) -> list[float]:
    """Seconds between one piece of text and the next."""
    return [later - sooner for sooner, later in pairwise(heard.arrivals)]


def cut(heard: Heard, until: float) -> Heard:
    """What was heard by then: an answer that went on behind it was left."""
    if heard.ended <= until:
        return heard
    arrivals = [moment for moment in heard.arrivals if moment <= until]
    num_tokens = round(heard.num_tokens * len(arrivals) / max(1, len(heard.arrivals)))
    return replace(heard, arrivals=arrivals, num_tokens=num_tokens, ended=until, left=True)
