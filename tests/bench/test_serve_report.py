"""From what clients heard to a report: equality, problems, memory, metrics."""

import json

import pytest

from holdfast.bench.serve.answers import add_stats, compare_answers, count_modes
from holdfast.bench.serve.http_client import Heard, Leaving
from holdfast.bench.serve.load import Load, Spoken
from holdfast.bench.serve.monitor import (
    PAGES_USED,
    RUNNING,
    Sample,
    Watched,
    at_share,
    is_flat,
    parse_metrics,
)
from holdfast.bench.serve.plot import plot_report
from holdfast.bench.serve.report import save, sum_up
from holdfast.bench.serve.table import show_report
from holdfast.bench.serve.workload import Job

IDLE = {RUNNING: 0.0, PAGES_USED: 0.0, "other": 4.0}


def spoken(text="abc", number=0, *, left=False, error=None, mode="certified", sent=0.0):
    """A deterministic answer; an ordinary one without a number."""
    job = Job((1, 2), 3, 0.0, 0, number is not None, number, Leaving(1) if left else None)
    stats = {"candidates": 2, "accepted": 1, "rolled_back": 1}
    heard = Heard(
        sent,
        sent + 2.0,
        [sent + 0.5, sent + 1.0],
        text,
        "length",
        num_tokens=4,
        holdfast=None if left or error else {"mode": mode if number is not None else "none", "stats": stats},
        error=error,
        detail="it broke" if error else "",
        left=left,
    )
    return Spoken(job, heard)


def report(*said, alone=(), watched=None, seconds=4.0):
    watched = watched or Watched(idle=IDLE)
    return sum_up(
        Load(0.0, seconds, 2 * seconds, list(said)),
        alone,
        machine="a machine",
        model="tiny",
        names=("a server", "2 clients", "requests"),
        client_cpu_seconds=1.0,
        watched=watched,
    )


def test_one_answer_to_each_prompt_is_one():
    answers = compare_answers([spoken("abc"), spoken("abc"), spoken("x", 1), spoken("any", None)])
    assert [(one.number, one.asked, one.whole, one.distinct) for one in answers] == [
        (0, 2, 2, 1),
        (1, 1, 1, 1),
    ]
    assert all(one.is_one for one in answers)


def test_two_answers_to_a_prompt_are_two():
    (answers,) = compare_answers([spoken("abc"), spoken("abd")])
    assert answers.distinct == 2 and not answers.is_one


def test_who_left_must_have_heard_the_answers_beginning():
    assert compare_answers([spoken("abc"), spoken("ab", left=True), spoken("", left=True)])[0].is_one
    assert compare_answers([spoken("abc"), spoken("x", left=True)])[0].astray == 1


def test_where_everybody_left_beginnings_must_agree():
    assert compare_answers([spoken("ab", left=True), spoken("abc", left=True)])[0].is_one
    assert compare_answers([spoken("ab", left=True), spoken("ac", left=True)])[0].astray == 1


def test_a_failed_answer_is_no_other_answer():
    assert compare_answers([spoken("abc"), spoken("a", error="time-out")])[0].is_one


def test_modes_and_counts_are_those_of_whole_deterministic_answers():
    said = [spoken(), spoken(mode="verified"), spoken(), spoken("x", None), spoken(left=True)]
    assert count_modes(said) == {"certified": 2, "verified": 1}
    assert add_stats(said) == {"candidates": 6, "accepted": 3, "rolled_back": 3}


def test_a_good_load():
    found = report(spoken(), spoken("x", None), spoken("ab", left=True))
    assert found.is_good and found.problems == []
    assert (found.num_requests, found.num_left, found.errors) == (3, 1, {})
    assert found.tokens_per_second == 3.0
    assert found.requests_per_second == 0.5
    assert found.client_cpu_share == 0.125
    assert set(found.latency) == {"ordinary", "deterministic"}
    assert found.idle == {RUNNING: 0.0, PAGES_USED: 0.0}
    assert sum(speed for _, speed in found.timeline) == 12.0


def test_what_comes_behind_the_end_is_no_speed():
    found = report(spoken(sent=3.25), seconds=4.0)
    assert found.tokens_per_second == 0.5  # 2 of 4 tokens
    assert found.requests_per_second == 0.0
    assert found.latency["deterministic"].end_to_end.count == 1


@pytest.mark.parametrize(
    ("said", "alone", "idle", "problem"),
    [
        ([spoken("a", error="status 500"), spoken("b")], [], IDLE, "1 × status 500: it broke"),
        ([spoken("a")], [spoken("b")], IDLE, "deterministic prompt 0 has 2 distinct answers"),
        (
            [spoken("a"), spoken("b", left=True)],
            [],
            IDLE,
            "deterministic prompt 0: 1 answers begin otherwise",
        ),
        ([spoken(mode="none")], [], IDLE, "1 deterministic answers came without the guarantee"),
        ([spoken()], [], IDLE | {PAGES_USED: 3.0}, "after the load 3 pages are still held"),
        ([spoken()], [], IDLE | {RUNNING: 1.0}, "after the load 1 still run"),
        (
            [spoken()],
            [],
            IDLE | {"holdfast_engine_restarts_total": 2.0},
            "the engine process was lost 2 times",
        ),
        ([spoken()], [spoken(error="time-out")], IDLE, "before the load: time-out: it broke"),
        ([], [], IDLE, "no answer came"),
    ],
)
def test_problems(said, alone, idle, problem):
    found = report(*said, alone=alone, watched=Watched(idle=idle))
    assert problem in found.problems
    assert not found.is_good


def growing(seconds, low, high, fds=20):
    return [Sample(at, int(low + (high - low) * at / seconds), fds) for at in range(int(seconds) + 1)]


def test_memory_is_flat_if_the_second_half_adds_nothing():
    assert is_flat(growing(100, 1e9, 1e9), {}) is True
    assert is_flat(growing(100, 1e9, 1.2e9), {}) is False
    assert is_flat([Sample(at, int(min(at, 40) * 1e7), 20) for at in range(101)], {}) is True
    assert is_flat(growing(30, 1e9, 2e9), {}) is None


def test_growth_while_the_cache_fills_says_nothing():
    filling = {"holdfast_kv_pages": 100.0, "holdfast_kv_pages_cached": 60.0}
    assert is_flat(growing(100, 1e9, 1.2e9), filling) is None
    assert is_flat(growing(100, 1e9, 1e9), filling) is True
    assert is_flat(growing(100, 1e9, 1.2e9), filling | {"holdfast_kv_pages_cached": 100.0}) is False


def test_samples_are_found_by_their_share_of_the_run():
    samples = growing(100, 0, 1000)
    assert [at_share(samples, share).resident_bytes for share in (0.1, 0.5, 1.0)] == [100, 500, 1000]


def test_growth_and_kept_handles_are_problems():
    watched = Watched(growing(100, 1e9, 2e9), IDLE, 3.0, Sample(0.0, 1, 20), Sample(0.0, 1, 23))
    found = report(spoken(), watched=watched)
    assert found.problems == [
        "memory still grew in the second half of the run",
        "3 handles were not given back",
    ]
    assert found.processes.resident_bytes == {"10 %": 1.1e9, "50 %": 1.5e9, "100 %": 2e9}


def test_the_offline_engine_decides_only_where_it_ran():
    found = report(spoken())
    assert found.offline_ratio is None
    found.offline_tokens_per_second = found.tokens_per_second / 0.9
    assert found.offline_ratio == pytest.approx(0.9) and found.is_good
    found.offline_tokens_per_second = found.tokens_per_second / 0.7
    assert not found.is_good


def test_metrics_are_summed_over_their_labels():
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


def test_a_report_is_shown_kept_and_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    watched = Watched(growing(100, 1e9, 1e9), IDLE, 3.0, Sample(0.0, 1, 20), Sample(0.0, 1, 20))
    found = report(spoken(), spoken("x", None), spoken("y", None, error="time-out"), watched=watched)
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
        "the server makes 0.80 of that",
        "not all is well",
    ):
        assert words in shown
    save(found, tmp_path / "a.json")
    kept = json.loads((tmp_path / "a.json").read_text())
    assert kept["latency"]["ordinary"]["first_text"]["p50"] == 0.5
    assert kept["problems"] == ["1 × time-out: it broke"]
    plot_report(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
