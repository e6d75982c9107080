"""The report of a load: answers compared, problems, memory, metrics."""

import json

import pytest

from holdfast.bench.report import write_report
from holdfast.bench.serve.answers import compare_answers, count_modes, sum_stats
from holdfast.bench.serve.http_client import Disconnect, StreamResult
from holdfast.bench.serve.load import LoadResult, LoadRun
from holdfast.bench.serve.monitor import (
    PAGES_USED,
    RUNNING,
    ProcessSample,
    ServerObservation,
    at_share,
    is_flat,
    parse_metrics,
)
from holdfast.bench.serve.plot import plot_report
from holdfast.bench.serve.report import make_report
from holdfast.bench.serve.table import show_report
from holdfast.bench.serve.workload import LoadRequest

IDLE = {RUNNING: 0.0, PAGES_USED: 0.0, "other": 4.0}


def result(text="abc", number=0, *, disconnected=False, error=None, mode="certified", sent=0.0):
    """A deterministic answer; an ordinary one if number is None."""
    request = LoadRequest(
        (1, 2), 3, 0.0, 0, number is not None, number, Disconnect(1) if disconnected else None
    )
    stats = {"candidates": 2, "accepted": 1, "rolled_back": 1}
    stream = StreamResult(
        sent,
        sent + 2.0,
        [sent + 0.5, sent + 1.0],
        text,
        "length",
        num_tokens=4,
        holdfast=None
        if disconnected or error
        else {"mode": mode if number is not None else "none", "stats": stats},
        error=error,
        detail="it broke" if error else "",
        disconnected=disconnected,
    )
    return LoadResult(request, stream)


def report(*said, alone=(), observed=None, seconds=4.0):
    observed = observed or ServerObservation(idle=IDLE)
    return make_report(
        LoadRun(0.0, seconds, 2 * seconds, list(said)),
        alone,
        machine="a machine",
        model="tiny",
        names=("a server", "2 clients", "requests"),
        client_cpu_seconds=1.0,
        observed=observed,
    )


def test_equal_answers_are_one():
    answers = compare_answers([result("abc"), result("abc"), result("x", 1), result("any", None)])
    assert [(one.number, one.asked, one.whole, one.distinct) for one in answers] == [
        (0, 2, 2, 1),
        (1, 1, 1, 1),
    ]
    assert all(one.is_one for one in answers)


def test_different_answers_are_counted():
    (answers,) = compare_answers([result("abc"), result("abd")])
    assert answers.distinct == 2 and not answers.is_one


def test_partial_answer_must_be_a_prefix():
    assert compare_answers([result("abc"), result("ab", disconnected=True), result("", disconnected=True)])[
        0
    ].is_one
    assert compare_answers([result("abc"), result("x", disconnected=True)])[0].astray == 1


def test_partial_answers_alone_must_agree():
    assert compare_answers([result("ab", disconnected=True), result("abc", disconnected=True)])[0].is_one
    assert compare_answers([result("ab", disconnected=True), result("ac", disconnected=True)])[0].astray == 1


def test_failed_answer_is_not_compared():
    assert compare_answers([result("abc"), result("a", error="time-out")])[0].is_one


def test_modes_and_stats_are_those_of_complete_deterministic_answers():
    said = [result(), result(mode="verified"), result(), result("x", None), result(disconnected=True)]
    assert count_modes(said) == {"certified": 2, "verified": 1}
    assert sum_stats(said) == {"candidates": 6, "accepted": 3, "rolled_back": 3}


def test_report_of_a_good_load():
    found = report(result(), result("x", None), result("ab", disconnected=True))
    assert found.is_good and found.problems == []
    assert (found.num_requests, found.num_left, found.errors) == (3, 1, {})
    assert found.tokens_per_second == 3.0
    assert found.requests_per_second == 0.5
    assert found.client_cpu_share == 0.125
    assert set(found.latency) == {"ordinary", "deterministic"}
    assert found.idle == {RUNNING: 0.0, PAGES_USED: 0.0}
    assert sum(speed for _, speed in found.timeline) == 12.0


def test_speed_counts_only_what_came_in_time():
    found = report(result(sent=3.25), seconds=4.0)
    assert found.tokens_per_second == 0.5  # 2 of 4 tokens
    assert found.requests_per_second == 0.0
    assert found.latency["deterministic"].end_to_end.count == 1


@pytest.mark.parametrize(
    ("said", "alone", "idle", "problem"),
    [
        ([result("a", error="status 500"), result("b")], [], IDLE, "1 × status 500: it broke"),
        ([result("a")], [result("b")], IDLE, "deterministic prompt 0 has 2 distinct answers"),
        (
            [result("a"), result("b", disconnected=True)],
            [],
            IDLE,
            "deterministic prompt 0: 1 partial answers differ from it",
        ),
        ([result(mode="none")], [], IDLE, "1 deterministic answers had no guarantee"),
        ([result()], [], IDLE | {PAGES_USED: 3.0}, "after the load 3 pages are still held"),
        ([result()], [], IDLE | {RUNNING: 1.0}, "after the load 1 requests still run"),
        (
            [result()],
            [],
            IDLE | {"holdfast_engine_restarts_total": 2.0},
            "the engine process was restarted 2 times",
        ),
        ([result()], [result(error="time-out")], IDLE, "before the load: time-out: it broke"),
        ([], [], IDLE, "no answer arrived"),
    ],
)
def test_problems_are_found(said, alone, idle, problem):
    found = report(*said, alone=alone, observed=ServerObservation(idle=idle))
    assert problem in found.problems
    assert not found.is_good


def growing(seconds, low, high, fds=20):
    return [ProcessSample(at, int(low + (high - low) * at / seconds), fds) for at in range(int(seconds) + 1)]


def test_memory_is_flat_without_growth_in_the_second_half():
    assert is_flat(growing(100, 1e9, 1e9), {}) is True
    assert is_flat(growing(100, 1e9, 1.2e9), {}) is False
    assert is_flat([ProcessSample(at, int(min(at, 40) * 1e7), 20) for at in range(101)], {}) is True
    assert is_flat(growing(30, 1e9, 2e9), {}) is None


def test_growth_while_the_kv_cache_fills_is_unknown():
    filling = {"holdfast_kv_pages": 100.0, "holdfast_kv_pages_cached": 60.0}
    assert is_flat(growing(100, 1e9, 1.2e9), filling) is None
    assert is_flat(growing(100, 1e9, 1e9), filling) is True
    assert is_flat(growing(100, 1e9, 1.2e9), filling | {"holdfast_kv_pages_cached": 100.0}) is False


def test_sample_at_a_share_of_the_run():
    samples = growing(100, 0, 1000)
    assert [at_share(samples, share).resident_bytes for share in (0.1, 0.5, 1.0)] == [100, 500, 1000]


def test_memory_growth_and_open_files_are_problems():
    observed = ServerObservation(
        growing(100, 1e9, 2e9), IDLE, 3.0, ProcessSample(0.0, 1, 20), ProcessSample(0.0, 1, 23)
    )
    found = report(result(), observed=observed)
    assert found.problems == [
        "memory still grew in the second half of the run",
        "3 file descriptors were not closed",
    ]
    assert found.processes.resident_bytes == {"10 %": 1.1e9, "50 %": 1.5e9, "100 %": 2e9}


def test_offline_ratio_counts_only_if_measured():
    found = report(result())
    assert found.offline_ratio is None
    found.offline_tokens_per_second = found.tokens_per_second / 0.9
    assert found.offline_ratio == pytest.approx(0.9) and found.is_good
    found.offline_tokens_per_second = found.tokens_per_second / 0.7
    assert not found.is_good


def test_metrics_are_summed_over_labels():
    text = """# HELP a_total x
# TYPE a_total counter
a_total{kind="x y}",other="{"} 2.0
a_total{kind="z"} 3
b 1.5e1 1700000000
c NaN
broken
"""
    found = parse_metrics(text)
    assert (found["a_total"], found["b"]) == (5.0, 15.0)
    assert "broken" not in found


def test_report_is_shown_written_and_plotted(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    observed = ServerObservation(
        growing(100, 1e9, 1e9), IDLE, 3.0, ProcessSample(0.0, 1, 20), ProcessSample(0.0, 1, 20)
    )
    found = report(result(), result("x", None), result("y", None, error="time-out"), observed=observed)
    found.offline_tokens_per_second = 3.75
    show_report(found)
    shown = capsys.readouterr().out
    for words in (
        "3.0 tok/s",
        "1 × time-out",
        "1 certified; 2 candidates, 1 accepted, 1 rolled back",
        "1000 MB at 10 %",
        "flat",
        "20 before, 20 after",
        "the server reaches 0.80 of that",
        "there were problems",
    ):
        assert words in shown
    write_report(found, tmp_path / "a.json")
    kept = json.loads((tmp_path / "a.json").read_text())
    assert kept["latency"]["ordinary"]["first_text"]["p50"] == 0.5
    assert kept["problems"] == ["1 × time-out: it broke"]
    plot_report(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
