"""Latencies as percentiles: time to first text, between deltas, per token, end to end.

A delta may hold several tokens (a verified window is sent at once), so the time between deltas and
the time per token are different figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.bench.percentiles import Percentiles
from holdfast.bench.serve.http_client import StreamResult


@dataclass(frozen=True)
class ServeLatency:
    """The latencies of one kind of requests."""

    first_text: Percentiles
    between_pieces: Percentiles
    per_token: Percentiles
    end_to_end: Percentiles

    @classmethod
    def of(cls, streams: Sequence[StreamResult]) -> "ServeLatency":
        """Streams without an end (disconnected or failed) count for their deltas only."""
        complete = [one for one in streams if is_complete(one)]
        return cls(
            Percentiles.of(one.arrivals[0] - one.sent for one in streams if one.arrivals),
            Percentiles.of(gap for one in streams for gap in gaps(one)),
            Percentiles.of(_per_token(one) for one in complete if one.num_tokens > 1 and one.arrivals),
            Percentiles.of(one.ended - one.sent for one in complete),
        )


def _per_token(stream: StreamResult) -> float:
    return (stream.arrivals[-1] - stream.arrivals[0]) / (stream.num_tokens - 1)


def is_complete(stream: StreamResult) -> bool:
    """Whether the stream was read to its end."""
    return stream.error is None and not stream.disconnected


def gaps(stream: StreamResult) -> list[float]:
    """Seconds between consecutive deltas."""
    return [later - sooner for sooner, later in pairwise(stream.arrivals)]


def truncate(stream: StreamResult, until: float) -> StreamResult:
    """The stream up to a time. One that went on after it counts as disconnected."""
    if stream.ended <= until:
        return stream
    arrivals = [moment for moment in stream.arrivals if moment <= until]
    num_tokens = round(stream.num_tokens * len(arrivals) / max(1, len(stream.arrivals)))
    return replace(stream, arrivals=arrivals, num_tokens=num_tokens, ended=until, disconnected=True)
