"""`bench gpu` on a tiny model and a CPU: every section runs and writes its figures."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from holdfast.bench.gpu import bench as gpu_bench
from holdfast.bench.gpu import cells as cells_module
from holdfast.bench.gpu.bench import REPORT_FILE, GpuBench
from holdfast.bench.gpu.breakdown import KernelEvent, busy_ns, floor_ms, kind_of, times_by_kind
from holdfast.bench.gpu.cells import CELL_NAMES, CELLS, CellBench, cell_params
from holdfast.bench.gpu.engines import EnginePair, open_engine_pair
from holdfast.bench.gpu.report import CellSection, GpuReport, SectionContext, SpeedRow, SpeedSection
from holdfast.bench.gpu.settings import (
    SECTIONS,
    GpuSettings,
    parse_cells,
    parse_numbers,
    parse_sections,
    settings_for,
)
from holdfast.bench.gpu.speed import AUTO, OFF, ORDINARY
from holdfast.bench.gpu.start import measure_starts
from holdfast.bench.gpu.table import cell_ratio, show_report
from holdfast.bench.gpu.timing import median_ms, require_complete, run_once
from holdfast.bench.peers import GOALS, VLLM
from holdfast.cli.main import app
from holdfast.core.results import Choice, Result, Stats
from holdfast.engine import config
from holdfast.errors import ConfigError, EngineStopped
from holdfast.models.shapes import published_config

TINY = replace(
    settings_for("tiny"),
    dtype="fp32",
    cells=("greedy-256", "receipts-256", "penalty", "json", "mixed", "long-100k", "verify-256"),
)


@pytest.fixture(scope="module", autouse=True)
def small_passes() -> Iterator[None]:
    """Fewer batch sizes to certify."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config._BATCH_LIMITS, "cpu", config.BatchLimits(64, 128))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "new"


@pytest.fixture(scope="module")
def report(folder: Path) -> GpuReport:
    return GpuBench(TINY, folder, lambda text: None).run(SECTIONS)


def test_every_section_runs(report: GpuReport) -> None:
    assert not report.errors
    assert set(report.sections) == set(SECTIONS)
    assert report.is_good


def test_speed_has_every_cell(report: GpuReport) -> None:
    speed = report.sections["speed"]
    for streams in TINY.streams:
        for variant in (AUTO, ORDINARY, OFF):
            row = speed.row(variant.name, streams)
            assert row is not None
            assert len(row.rounds) == TINY.rounds
            assert row.speed > 0
            assert row.step_ms is not None
    assert set(speed.prefill) == {AUTO.name, ORDINARY.name, OFF.name}
    assert speed.prefill_tokens == TINY.prefill_streams * TINY.prompt_len


def test_cells_have_every_variant_and_their_ratios(report: GpuReport) -> None:
    cells = report.sections["cells"]
    assert not cells.errors
    for name in TINY.cells:
        for variant in CELLS[name].variants:
            row = cells.row(name, variant.name)
            assert row is not None and row.speed > 0 and len(row.rounds) == TINY.rounds
            if variant is not OFF:
                ratio = cell_ratio(cells, row)
                assert ratio is None if name == "penalty" else ratio  # greedy-128 did not run
    assert cells.row("json", AUTO.name).figures["without"] > 0
    receipts, greedy = cells.row("receipts-256", AUTO.name), cells.row("greedy-256", AUTO.name)
    assert cell_ratio(cells, receipts) == receipts.speed / greedy.speed


def test_cells_of_the_table_ask_for_what_their_names_say() -> None:
    params = {name: cell_params(cell, deterministic=True) for name, cell in CELLS.items()}
    assert all(one.deterministic and one.ignore_eos for one in params.values())
    assert (params["sampled"].temperature, params["sampled"].top_p) == (0.8, 0.95)
    assert params["penalty"].repetition_penalty == 1.1 and params["logprobs"].logprobs == 5
    assert [cell.name for cell in CELLS.values() if cell.beside not in (None, *CELLS)] == []
    assert GpuSettings().max_len >= CELLS["long-100k"].prompt_len + CELLS["long-100k"].num_tokens


@pytest.fixture(scope="module")
def pair() -> EnginePair:
    return open_engine_pair("tiny", "fp32", "auto", 8, 800, 100)


def test_failed_cell_is_noted_and_the_next_one_runs(
    pair: EnginePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise EngineStopped("no llguidance")

    monkeypatch.setattr(cells_module, "_time_neighbours", fail)
    report = GpuReport("machine", "torch", None, {})
    found = report.sections["cells"] = CellSection("tiny", "fp32")
    CellBench(pair, found, TINY, SectionContext(report, None, lambda text: None)).run(
        ("json", "receipts-256")
    )
    assert list(found.errors) == ["json"] and "no llguidance" in found.errors["json"]
    assert found.row("receipts-256", AUTO.name) is not None and not report.is_good


def test_names_of_cells_choose_cells() -> None:
    assert parse_sections("mixed,breakdown", CELL_NAMES) == ("cells", "breakdown")
    assert parse_cells("mixed,breakdown,start", CELL_NAMES) == ("mixed", "start")
    assert parse_cells(None, CELL_NAMES) == parse_cells("cells", CELL_NAMES) == CELL_NAMES
    with pytest.raises(ConfigError, match="greedy-256"):
        parse_sections("greedy-257", CELL_NAMES)


@pytest.mark.long
def test_start_is_measured_twice() -> None:
    starts = measure_starts("tiny", "fp32")
    assert list(starts) == ["first", "second"]
    assert all(0 < one["build"] < one["first_token"] for one in starts.values())


def test_verify_section_counts_candidates(report: GpuReport) -> None:
    verified = report.sections["verify"].rows[0]
    assert verified.candidates > 0


def test_stress_section_has_one_answer_in_both_modes(report: GpuReport) -> None:
    stress = report.sections["stress"]
    assert all(stress.one_answer.values())
    assert {(one.mode, one.asked) for one in stress.rows} == {
        (mode, asked) for mode in ("auto", "verify", "off") for asked in ("greedy", "sampled", "penalised")
    }
    assert all(one.runs == TINY.stress_runs // 3 for one in stress.rows if one.mode != "off")
    assert all(one.runs >= 1 for one in stress.rows)


def test_report_is_written_as_json(report: GpuReport, folder: Path) -> None:
    kept = json.loads((folder / REPORT_FILE).read_text())
    assert set(kept["sections"]) == set(SECTIONS)
    assert len(kept["sections"]["speed"]["rows"]) == len(TINY.streams) * 3
    assert kept["sections"]["breakdown"]["steps"][0]["busy_ms"] > 0
    assert not list(folder.glob("*.tmp"))


def test_tables_show_every_section(report: GpuReport) -> None:
    console = Console(width=200, record=True)
    show_report(report, console)
    text = console.export_text()
    for words in ("tok/s (tiny", "verify (tiny", "split-K", "inside random loads", "a decode step"):
        assert words in text


def test_plots_are_drawn(report: GpuReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from holdfast.bench.gpu.plot import plot_report

    written = plot_report(report, tmp_path)
    assert {path.name for path in written} == {
        f"bench-gpu-{name}.png" for name in ("cells", "speed", "small", "breakdown")
    }
    assert all(path.stat().st_size > 1000 for path in written)


def test_failed_section_is_reported_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(gpu_bench, "open_engine_pair", fail)
    logged: list[str] = []
    report = GpuBench(TINY, tmp_path, logged.append).run(("speed", "certificate"))
    assert report.errors == {"speed": "RuntimeError: no device"}
    assert "certificate" in report.sections
    assert not report.is_good
    assert json.loads((tmp_path / REPORT_FILE).read_text())["errors"] == report.errors
    assert any("no device" in line for line in logged)


def test_section_over_time_starts_no_measurement(tmp_path: Path) -> None:
    report = GpuBench(replace(TINY, section_seconds=-1.0), None, lambda text: None).run(("speed", "stress"))
    assert report.sections["speed"].cut_off
    assert report.sections["speed"].rows == []
    assert report.sections["stress"].cut_off
    assert report.sections["stress"].one_answer == {}  # no probe ran


def test_run_once_counts_tokens_and_refuses_short_answers(pair: EnginePair) -> None:
    engine = pair.engine("auto", plain=False)
    timing = run_once(engine, [[5, 6, 7], [8, 9]], 5, deterministic=True)
    assert (timing.num_tokens, timing.num_prompt_tokens) == (10, 5)
    assert 0 < timing.first_seconds <= timing.seconds
    short = Result((1,), (Choice("", (1, 2), "length"),), 0, "none", Stats())
    with pytest.raises(EngineStopped, match="2 tokens instead of 3"):
        require_complete([short], 3)
    with pytest.raises(EngineStopped, match="out of memory"):
        require_complete([replace(short, error="out of memory")], 2)


def test_engine_pair_shares_weights_and_pages(pair: EnginePair) -> None:
    exact, plain = pair.exact.runner, pair.plain.runner
    assert exact._store is plain._store  # type: ignore[attr-defined]
    assert exact._decoder.layers is plain._decoder.layers  # type: ignore[attr-defined]
    ordinary = [
        run_once(pair.engine(mode, plain=mode == "off"), [[5, 6, 7]], 4, deterministic=False)
        for mode in ("auto", "off")
    ]
    assert all(timing.num_tokens == 4 for timing in ordinary)


def test_median_step_skips_the_first_interval() -> None:
    assert median_ms([0.0, 5.0, 5.1, 5.2]) == pytest.approx(100.0)
    assert median_ms([0.0, 1.0]) is None


def test_overlapping_kernels_count_once() -> None:
    kernels = [
        KernelEvent("a", 0, 10),
        KernelEvent("b", 5, 12),
        KernelEvent("c", 20, 21),
        KernelEvent("d", 6, 8),
    ]
    assert busy_ns(kernels) == 13


def test_the_longest_product_of_each_step_is_the_head() -> None:
    step = [("nvjet_small", 2), ("nvjet_large", 9), ("rms_norm_kernel", 1), ("mystery", 3)]
    kernels, now = [], 0
    for _ in range(2):
        for name, length in step:
            kernels.append(KernelEvent(name, now, now + length * 1_000_000))
            now += length * 1_000_000
    assert times_by_kind(kernels, 2) == {"head": 9.0, "other": 3.0, "products": 2.0, "norms": 1.0}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "products"),
        ("void cutlass::Kernel2<cutlass_80_wmma>", "products"),
        ("_small_m_gate_up", "products"),
        ("_attention_short", "attention"),
        ("_merge_splits", "attention"),
        ("_add_rms_norm", "norms"),
        ("_rope_store", "rope and store"),
        ("_silu_mul", "activation"),
        ("_chunk_stats", "sampler"),
        ("_finish_greedy", "sampler"),
        ("_embed", "embedding"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("void at::native::index_elementwise_kernel", "copies"),
    ],
)
def test_kernel_kinds_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_memory_floor_is_weights_and_kv() -> None:
    config = published_config("llama-3.1-8b")
    assert floor_ms(config, 1, 0, 2) == pytest.approx(3.5, abs=0.1)
    per_sequence = floor_ms(config, 1, 640, 2) - floor_ms(config, 0, 640, 2)
    assert per_sequence == pytest.approx(0.0195, abs=0.001)


def test_peers_and_goals_have_the_same_cells() -> None:
    settings = GpuSettings()
    assert tuple(VLLM["llama-3.1-8b"]) == settings.streams == tuple(GOALS["llama-3.1-8b"])
    assert tuple(VLLM["qwen3-0.6b"]) == settings.small_streams == tuple(GOALS["qwen3-0.6b"])


def test_ratio_needs_the_same_number_of_streams() -> None:
    speed = SpeedSection(
        "tiny", "bf16", 8, 8, [SpeedRow(AUTO.name, 1, 90.0, None), SpeedRow(ORDINARY.name, 1, 100.0, None)]
    )
    assert speed.ratio(AUTO.name, ORDINARY.name, 1) == pytest.approx(0.9)
    assert speed.ratio(AUTO.name, ORDINARY.name, 8) is None


def test_sections_and_numbers_are_parsed() -> None:
    assert parse_sections("stress, speed") == ("speed", "stress")
    assert parse_sections(None) == SECTIONS
    assert parse_sections("needle") == ("stress",)  # the old name
    with pytest.raises(ConfigError, match="no section"):
        parse_sections("speed,sped")
    assert parse_numbers("1,8") == (1, 8)
    with pytest.raises(ConfigError, match="whole numbers"):
        parse_numbers("1,x")


def test_command_writes_report_and_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ["bench", "gpu", "--model", "tiny", "--dtype", "fp32", "--only", "speed", "--streams", "1"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "tok/s (tiny" in done.output
    assert {path.name for path in tmp_path.iterdir()} == {REPORT_FILE, "bench-gpu-speed.png"}
