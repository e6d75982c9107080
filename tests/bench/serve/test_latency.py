"""Latency percentiles of streams."""

import statistics

import pytest

from holdfast.bench.percentiles import Percentiles, percentile
from holdfast.bench.serve.http_client import StreamResult
from holdfast.bench.serve.latency import ServeLatency, gaps, truncate


def stream(sent=0.0, arrivals=(1.0, 1.5, 2.5), ended=3.0, num_tokens=4, **more):
    return StreamResult(sent, ended, list(arrivals), num_tokens=num_tokens, **more)


def test_percentiles_match_the_statistics_module():
    values = sorted([3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0])
    wanted = statistics.quantiles(values, n=100, method="inclusive")
    assert [percentile(values, percent) for percent in range(1, 100)] == pytest.approx(wanted)
    assert (percentile(values, 0), percentile(values, 100)) == (1.0, 9.0)


def test_percentiles_of_one_and_no_value():
    assert Percentiles.of([2.0]) == Percentiles(1, 2.0, 2.0, 2.0)
    assert Percentiles.of([]) == Percentiles(0, 0.0, 0.0, 0.0)


def test_latencies_of_one_stream():
    latency = ServeLatency.of([stream()])
    assert latency.first_text.p50 == 1.0
    assert (latency.between_pieces.count, latency.between_pieces.p50) == (2, 0.75)
    assert latency.per_token.p50 == 0.5  # 4 tokens in 3 deltas
    assert latency.end_to_end.p50 == 3.0


def test_streams_without_an_end_count_their_deltas_only():
    latency = ServeLatency.of(
        [stream(disconnected=True), stream(error="time-out"), stream(arrivals=(), error="status 500")]
    )
    assert (latency.first_text.count, latency.between_pieces.count) == (2, 4)
    assert (latency.per_token.count, latency.end_to_end.count) == (0, 0)


def test_one_token_has_no_time_per_token():
    assert ServeLatency.of([stream(arrivals=(1.0,), num_tokens=1)]).per_token.count == 0
    assert gaps(stream(arrivals=(1.0,))) == []


def test_truncate_drops_later_deltas():
    whole = stream(num_tokens=6)
    assert truncate(whole, 3.0) is whole
    part = truncate(whole, 2.0)
    assert (part.arrivals, part.num_tokens, part.disconnected) == ([1.0, 1.5], 4, True)
    assert truncate(whole, 0.5).arrivals == []
