"""`holdfast bench`: commands, old names, output and exit codes."""

import json
import re
from dataclasses import asdict, replace

import pytest

from holdfast.bench.determinism import features, matrix, stress, stress_jobs
from holdfast.bench.determinism.adversary import campaign
from holdfast.bench.determinism.adversary.evidence import Evidence
from holdfast.bench.determinism.planted import report as planted_report
from holdfast.bench.determinism.planted.report import PlantedReport
from holdfast.bench.determinism.planted.run import PlantedResult
from holdfast.bench.speed import cpu
from holdfast.bench.tiny import tiny_engine
from holdfast.core.results import Stats
from holdfast.errors import ConfigError

SPEED = {
    "Hugging Face": {"prefill": 100.0, "1": 10.0, "8": 40.0, "32": 80.0},
    "ordinary": {"prefill": 150.0, "1": 25.0, "8": 100.0, "32": 240.0},
    "deterministic, auto": {"prefill": 148.0, "1": 24.0, "8": 98.0, "32": 238.0},
    "deterministic, verify": {"prefill": 147.0, "1": 15.0, "8": 72.0, "32": 170.0},
}
COST = {
    "first_byte_seconds": 2.5,
    "peak_resident_bytes": 7e8,
    "weights_bytes": 2.7e8,
    "kv_budget_bytes": 268435456,
}


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def report(monkeypatch):
    made = cpu.CpuSpeedReport("a machine", 2, "2.13", "tiny", "bfloat16", "float32", 1, 8, SPEED, COST)
    monkeypatch.setattr(cpu, "run", lambda *given: made)
    return made


def refuse_to_open(config):
    raise ConfigError(f"opened {config.model}")


def small_engine(config, **options):
    """Fewer batch sizes to certify."""
    return tiny_engine(replace(config, max_pass_tokens=64), **options)


def summary(*counts):
    answers = {stress.ResultBits((number,), ()): count for number, count in enumerate(counts)}
    return stress.StressSummary(answers, Stats(), sum(counts))


def few_features(engine, prompt):
    found = {feature.name: feature for feature in features.find_features(engine, prompt)}
    return [found[name] for name in ("greedy", "logprobs", "JSON schema")]


def test_determinism_has_one_answer_and_several_without_the_guarantee(holdfast, model, monkeypatch):
    if not matrix.products_disagree():
        pytest.skip("on this CPU the fp32 product is one bit class: nothing can differ")
    monkeypatch.setattr(matrix, "TINY", (("torch", "fp32"),))
    monkeypatch.setattr(matrix, "tiny_engine", small_engine)
    monkeypatch.setattr(matrix, "NUM_COMBINATIONS", 1)
    monkeypatch.setattr(matrix, "find_features", few_features)
    result = holdfast("bench", "determinism", model, "--runs", "2")
    assert result.exit_code == 0, result.stdout + result.stderr
    rows = re.findall(r"(auto, verify|off) +(?:c|torch) +(?:fp32|bf16) +(\d+) +(\d+)", result.stdout)
    assert [row[:2] for row in rows] == 8 * [("auto, verify", "2")] + 2 * [("off", "8")]
    assert all(int(row[2]) == 1 for row in rows[:8])
    greedy, logprobs = (int(row[2]) for row in rows[8:])
    assert logprobs >= greedy and logprobs > 1


def test_several_answers_with_the_guarantee_exit_with_1(holdfast, model, monkeypatch):
    monkeypatch.setattr(matrix, "TINY", ())
    monkeypatch.setattr(matrix, "find_features", few_features)
    monkeypatch.setattr(matrix, "stress_test", lambda *given, **named: summary(3, 1))
    result = holdfast("bench", "determinism", model)
    assert result.exit_code == 1
    assert "must be one" in result.stdout


def test_stress_jobs_in_processes_are_counted_together(holdfast, model, monkeypatch, tmp_path):
    parts = [[cell_of(summary(2))], [cell_of(summary(3))]]
    monkeypatch.setattr(stress_jobs, "TINY", ())
    monkeypatch.setattr(
        stress_jobs, "run_jobs", lambda jobs, count, log: stress_jobs.merge_parts(parts[: len(jobs)])
    )
    result = holdfast(
        "bench", "determinism", model, "--model-runs", "2", "--jobs", "2", "--save", tmp_path / "a.json"
    )
    assert result.exit_code == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "a.json").read_text())
    assert (report["runs"], report["is_good"]) == (5, True)
    assert [(cell["feature"], cell["distinct"]) for cell in report["cells"]] == [("greedy", 1)]


def cell_of(found):
    cell = matrix.MatrixCell("greedy", "a model", "c", "fp32")
    return matrix.CellResult(cell, found, *matrix.judge(cell, found))


@pytest.mark.parametrize(("distinct", "code"), [(1, 0), (2, 1)])
def test_adversary_exits_with_1_if_the_promise_is_broken(
    holdfast, model, monkeypatch, tmp_path, distinct, code
):
    found = Evidence("near ties", "c fp32")
    for number in range(2):
        found.add("one fingerprint", "greedy", f"bits {number % distinct}")
    monkeypatch.setattr(campaign, "_attacks", lambda *given: [("near ties", lambda: found)])
    result = holdfast("bench", "determinism", model, "--adversary", "--save", tmp_path / "a.json")
    assert result.exit_code == code, result.stdout + result.stderr
    (attack,) = json.loads((tmp_path / "a.json").read_text())["attacks"]
    assert (attack["runs"], attack["distinct"], attack["fingerprints"]) == (2, distinct, 1)
    assert attack["verdict"] == ("held" if code == 0 else "broken")
    assert attack["verdict"] in result.stdout


def test_speed_and_ratios_are_shown(holdfast, model, report):
    result = holdfast("bench", "cpu", model)
    assert result.exit_code == 0, result.stderr
    assert re.search(r"ordinary / Hugging Face +1\.50x +2\.50x +2\.50x +3\.00x", result.stdout)
    assert re.search(r"verify / ordinary +0\.98x +0\.60x +0\.72x +0\.71x", result.stdout)
    assert "8 deterministic streams / 1 deterministic stream, auto: 4.08x" in result.stdout
    assert "Hugging Face ran in float32, not in bfloat16" in result.stdout
    assert "first byte after 2.50 s" in result.stdout
    assert "peak resident memory: 700 MB (at most 570 MB: weights 270 MB)" in result.stdout


def test_speed_is_written_and_plotted(holdfast, model, report, tmp_path):
    result = holdfast("bench", "cpu", model, "--save", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    assert result.exit_code == 0, result.stderr
    assert json.loads((tmp_path / "a.json").read_text()) == asdict(report)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_missing_folder_is_refused_before_measuring(holdfast, model, monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "run", lambda *given: pytest.fail("measured first"))
    result = holdfast("bench", "cpu", model, "--plot", tmp_path / "none" / "a.png")
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr


@pytest.mark.parametrize(
    ("reported", "exit_code", "text"),
    [((1, 3), 0, "found"), ((0,), 0, "found"), ((1,), 1, "missed: linear, c")],
)
def test_missed_planted_change_exits_with_1(holdfast, monkeypatch, tmp_path, reported, exit_code, text):
    result = PlantedResult("linear", "c", "float32", "48 x 96", "K in two halves", (1, 3), reported, 0.1)
    made = PlantedReport("a machine", "2.13", None, (result,))
    monkeypatch.setattr(planted_report, "plant_changes", lambda *given: made)
    shown = holdfast("bench", "determinism", "--planted", "--save", tmp_path / "planted.json")
    assert shown.exit_code == exit_code, shown.stderr
    assert text in shown.stdout
    (saved,) = json.loads((tmp_path / "planted.json").read_text())["results"]
    assert saved["reported_sizes"] == list(reported)


def test_two_kinds_of_test_are_refused(holdfast):
    refused = holdfast("bench", "determinism", "--adversary", "--planted")
    assert refused.exit_code == 2
    assert "give one of them" in refused.output
