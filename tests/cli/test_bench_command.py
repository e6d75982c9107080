"""`holdfast bench`: the wrappers call what they name, and a finding is an exit code."""

import pytest

from holdfast.bench import needle
from holdfast.core.result import Stats


def test_the_needle_finds_one_answer(holdfast, model):
    result = holdfast("bench", "needle", model, "--runs", "4")
    assert result.exit_code == 0, result.stderr
    assert "4 runs, 1 distinct answer;" in result.stdout


def test_a_needle_that_pricks_exits_with_1(holdfast, model, monkeypatch):
    answers = {needle.Outcome((1,), ()): 3, needle.Outcome((2,), ()): 1}
    monkeypatch.setattr(needle, "prick", lambda *given, **named: needle.Tally(answers, Stats(), 4))
    result = holdfast("bench", "needle", model)
    assert result.exit_code == 1
    assert "2 distinct answers" in result.stdout


def test_speed_is_shown_beside_hugging_face(holdfast, model, monkeypatch, tmp_path):
    cpu = pytest.importorskip("holdfast.bench.cpu")
    speed = {"Hugging Face": {"prefill": 10.0, "1": 2.0}, "ordinary": {"prefill": 15.0, "1": 5.0}}
    report = cpu.Report("a machine", 2, "2.13", "tiny", "bfloat16", "float32", 1, 8, speed)
    monkeypatch.setattr(cpu, "run", lambda *given: report)
    result = holdfast("bench", "cpu", model, "--save", tmp_path / "speed.json")
    assert result.exit_code == 0, result.stderr
    assert "5.0 (2.50x)" in result.stdout
    assert cpu.load(tmp_path / "speed.json") == report
