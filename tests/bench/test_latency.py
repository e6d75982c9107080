"""Percentiles, and what they are of."""

import statistics

import pytest

from holdfast.bench.serve.http_client import Heard
from holdfast.bench.serve.latency import Latency, Percentiles, cut, gaps, percentile


def heard(sent=0.0, arrivals=(1.0, 1.5, 2.5), ended=3.0, num_tokens=4, **more):
    return Heard(sent, ended, list(arrivals), num_tokens=num_tokens, **more)


def test_percentiles_are_those_of_the_statistics_module():
    values = sorted([3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0])
    wanted = statistics.quantiles(values, n=100, method="inclusive")
    assert [percentile(values, percent) for percent in range(1, 100)] == pytest.approx(wanted)
    assert (percentile(values, 0), percentile(values, 100)) == (1.0, 9.0)


def test_percentiles_of_one_value_and_of_none():
    assert Percentiles.of([2.0]) == Percentiles(1, 2.0, 2.0, 2.0)
    assert Percentiles.of([]) == Percentiles(0, 0.0, 0.0, 0.0)


def test_what_one_answer_says():
    latency = Latency.of([heard()])
    assert latency.first_text.p50 == 1.0
    assert (latency.between_pieces.count, latency.between_pieces.p50) == (2, 0.75)
    assert latency.per_token.p50 == 0.5  # 4 tokens came in 3 pieces
    assert latency.end_to_end.p50 == 3.0


def test_answers_without_an_end_count_for_what_they_had():
    latency = Latency.of([heard(left=True), heard(error="time-out"), heard(arrivals=(), error="status 500")])
    assert (latency.first_text.count, latency.between_pieces.count) == (2, 4)
    assert (latency.per_token.count, latency.end_to_end.count) == (0, 0)


def test_an_answer_of_one_token_has_no_time_a_token():
    assert Latency.of([heard(arrivals=(1.0,), num_tokens=1)]).per_token.count == 0
    assert gaps(heard(arrivals=(1.0,))) == []


def test_what_was_heard_by_a_moment():
    whole = heard(num_tokens=6)
    assert cut(whole, 3.0) is whole
    part = cut(whole, 2.0)
    assert (part.arrivals, part.num_tokens, part.left) == ([1.0, 1.5], 4, True)
    assert cut(whole, 0.5).arrivals == []
