"""`bench paper` on a tiny model and a CPU: every part runs, and its figures stand beside the published ones."""

import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.bench.paper.bench import REPORT_FILE, PaperBench
from holdfast.bench.paper.report import PaperReport
from holdfast.bench.paper.settings import (
    PARTS,
    WORKLOADS,
    PaperSettings,
    paper_settings,
    parse_parts,
    parse_shares,
)
from holdfast.bench.paper.table import show_paper
from holdfast.engine import config
from holdfast.errors import ConfigError
from holdfast.scheduler.policy import SchedulerConfig

TINY = replace(
    paper_settings("tiny"), shares=(0, 100), windows=(2,), groups=(2,), divisor=64, latency_seconds=0.2
)


@pytest.fixture(scope="module", autouse=True)
def small_passes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config._BATCH_LIMITS, "cpu", config.BatchLimits(64, 128))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(scope="module")
def report(folder: Path) -> PaperReport:
    return PaperBench(TINY, folder, lambda text: None).run(PARTS)


def test_every_part_has_its_points(report: PaperReport, folder: Path) -> None:
    assert not report.errors
    assert {(one.workload, one.mode, one.share) for one in report.throughput} == {
        (workload, mode, share) for workload in WORKLOADS for mode in ("auto", "verify") for share in (0, 100)
    }
    assert all(one.of_off == one.speed / report.off[one.workload] > 0 for one in report.throughput)
    for one in report.latency:
        assert len(one.first_token) == len(one.between_tokens) == 101
        assert one.first_token == sorted(one.first_token) and one.first_token[0] > 0
    assert {(one.window, one.group, one.plain_candidates) for one in report.rollbacks} == {
        (2, group, plain) for group in TINY.groups for plain in (True, False)
    }
    assert all(one.mean_window <= 2 for one in report.rollbacks)
    kept = json.loads((folder / REPORT_FILE).read_text())
    assert len(kept["throughput"]) == len(report.throughput) and kept["published"]["sglang"]["arxiv"] == 0.83


def test_all_requests_are_verified_only_at_full_share(report: PaperReport) -> None:
    verified = {one.share: one.candidates for one in report.throughput if one.mode == "verify"}
    assert verified[0] == 0 < verified[100]


def test_tables_show_the_published_figures(report: PaperReport) -> None:
    console = Console(width=200, record=True)
    show_paper(report, console)
    text = console.export_text()
    assert all(words in text for words in ("LLM-42", "0.46", "0.82", "between tokens p50", "mean window"))


@pytest.mark.long
def test_plots_are_drawn(report: PaperReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from holdfast.bench.paper.plot import plot_paper

    written = plot_paper(report, tmp_path)
    assert {path.name for path in written} == {f"bench-paper-{name}.png" for name in PARTS}
    assert all(path.stat().st_size > 1000 for path in written)


@pytest.mark.long
def test_failed_part_is_noted_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PaperBench) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(PaperBench, "_throughput", fail)
    monkeypatch.setattr(PaperBench, "_latency", lambda self: None)
    report = PaperBench(TINY, None, lambda text: None).run(("throughput", "latency"))
    assert report.errors == {"throughput": "RuntimeError: no memory"} and "latency" in report.seconds


def test_lengths_have_the_published_statistics() -> None:
    lengths = WORKLOADS["arxiv"].draw(random.Random(1), 4000)
    assert statistics.median(prompt for prompt, _ in lengths) == pytest.approx(7059, rel=0.05)
    assert statistics.median(output for _, output in lengths) == pytest.approx(208, rel=0.05)
    lengths = WORKLOADS["sharegpt"].draw(random.Random(1), 4000)
    assert statistics.mean(prompt for prompt, _ in lengths) == pytest.approx(161.31, rel=0.1)
    assert statistics.mean(output for _, output in lengths) == pytest.approx(337.99, rel=0.1)
    longest = max(one.max_prompt + one.max_output for one in WORKLOADS.values())
    assert PaperSettings().max_len >= longest


def test_wrong_names_are_refused() -> None:
    assert parse_parts("rollbacks,throughput") == ("throughput", "rollbacks")
    with pytest.raises(ConfigError, match="throughput, latency, rollbacks"):
        parse_parts("speed")
    with pytest.raises(ConfigError, match="percentages"):
        parse_shares("0,101")


def test_window_is_limited_by_the_reference() -> None:
    schedule = SchedulerConfig(4, 64, 16)
    assert schedule.longest_window == 15
    assert replace(schedule, max_window=4).longest_window == 4
    assert replace(schedule, max_window=62).longest_window == 15
