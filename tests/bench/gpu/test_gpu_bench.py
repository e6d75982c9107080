"""`bench gpu` on a tiny model and a CPU: every part runs and writes its rows."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from holdfast import LLM
from holdfast.bench.gpu import bench as gpu_bench
from holdfast.bench.gpu.bench import _groups, _missing_guarantee, run_bench
from holdfast.bench.gpu.breakdown import KernelEvent, busy_ns, floor_ms, kind_of, times_by_kind
from holdfast.bench.gpu.cells import CELLS, DETERMINISTIC, OFF, ORDINARY, VERIFY, Cell, Variant
from holdfast.bench.gpu.engines import EngineProcess, Figures, run_job
from holdfast.bench.gpu.measure import Bench, read_rows, shown
from holdfast.bench.gpu.settings import PARTS, GpuSettings, parse_names, settings_for
from holdfast.bench.gpu.table import plot_cells, read_cells, tables
from holdfast.bench.tiny import VOCAB, dummy_model, shape_config
from holdfast.cli.main import app
from holdfast.errors import ConfigError, EngineStopped

TINY = settings_for("tiny")
NUMBERS = itertools.count()
NAMES = ("uniform-8", "prefill-8", "mixed", "verify-32")


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with dummy_model("tiny") as folder:
        yield folder


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(**TINY.llm_options(model)) as llm:
        yield llm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "new"


@pytest.fixture(scope="module")
def bench(folder: Path) -> Bench:
    return run_bench(TINY, ("cells", "certificate", "stress"), NAMES, folder, lambda text: None)


def run(llm: LLM, name: str, variant: Variant = DETERMINISTIC) -> tuple[Cell, Figures]:
    cell = CELLS[name].scaled(TINY.divisor, TINY.max_streams)
    return cell, run_job(llm, cell.job(variant, next(NUMBERS), VOCAB))


# Jobs


@pytest.mark.parametrize("name", [name for name in CELLS if not name.startswith("verify")])
def test_every_answer_of_a_cell_is_certified(llm: LLM, name: str) -> None:
    cell, figures = run(llm, name)
    assert figures["answers"] == figures["certified"] == cell.streams - (name == "json")
    assert figures["speed"] > 0
    assert ("step_ms" in figures) == cell.times_prefill
    assert ("without" in figures) == (name == "json")
    assert "cached_tokens" not in figures  # prompts are new


def test_ordinary_answers_are_not_certified(llm: LLM) -> None:
    _, figures = run(llm, "uniform-8", ORDINARY)
    assert "certified" not in figures and "verified" not in figures


def test_shared_tokens_come_from_the_prefix_cache(llm: LLM) -> None:
    cell = Cell("shared", "", 3, 200, 4, shared_len=190)
    assert cell.num_positions == 3 * 204 - 2 * 190
    job = cell.job(DETERMINISTIC, 7, VOCAB)
    assert run_job(llm, replace(job, prompt_lens=[200], output_lens=[4])).get("cached_tokens", 0) == 0
    assert run_job(llm, job)["cached_tokens"] > 0


def test_speed_of_a_prefill_is_that_of_the_prompts(llm: LLM) -> None:
    cell, figures = run(llm, "prefill-8")
    assert figures["speed"] * figures["seconds"] == pytest.approx(cell.streams * cell.prompt_len)
    cell, figures = run(llm, "uniform-8")
    assert figures["speed"] * figures["seconds"] == pytest.approx(cell.streams * cell.num_tokens)


def test_answer_that_ends_early_is_refused(llm: LLM) -> None:
    job = CELLS["uniform-8"].scaled(TINY.divisor, 1).job(DETERMINISTIC, next(NUMBERS), VOCAB)
    stops = {"stop_token_ids": [7], "logit_bias": {7: 100.0}}
    with pytest.raises(EngineStopped, match="1 tokens instead of 4"):
        run_job(llm, replace(job, params=stops))


# Processes


def test_process_survives_a_job_that_fails(model: str) -> None:
    job = CELLS["uniform-8"].scaled(TINY.divisor, 2).job(OFF, 1, VOCAB)
    with EngineProcess(TINY.llm_options(model, determinism="off")) as process:
        assert process.start_up_seconds["weights"] > 0
        with pytest.raises(EngineStopped, match="PromptTooLong"):
            process.run(replace(job, prompt_lens=[2000], output_lens=[4]))
        with pytest.raises(EngineStopped, match="DeterminismRefused"):
            process.run(replace(job, deterministic=True))
        assert process.run(job)["answers"] == 2
        process._process.kill()
        with pytest.raises(EngineStopped, match="process ended with -9"):
            process.run(job)


def test_engine_that_cannot_be_built_is_an_error() -> None:
    with pytest.raises(EngineStopped, match="no shape called"):
        EngineProcess({"model": "llama-9", "load_format": "dummy"})


# A whole run


def test_every_cell_has_its_variants(bench: Bench) -> None:
    assert bench.is_good, [row for row in bench.rows if "error" in row]
    cells = {cell.cell: cell for cell in read_cells(bench.rows)}
    assert set(cells) == set(NAMES)
    for name, cell in cells.items():
        assert set(cell.best) == {variant.name for variant in CELLS[name].variants}
        assert cell.name == (VERIFY.name if name == "verify-32" else DETERMINISTIC.name)
        ratio = cell.ratio(OFF.name)
        assert ratio == cell.best[cell.name]["speed"] / cell.best[OFF.name]["speed"]
    opened = [row["determinism"] for row in bench.rows if row["part"] == "open"]
    assert opened == ["auto", "off", "verify", "off"]


def test_rows_are_written_as_json(bench: Bench, folder: Path) -> None:
    header, rows = read_rows(folder / "bench-gpu.json")
    assert rows == bench.rows
    assert header == bench.header and header["name"] == "bench-gpu" and header["machine"]
    assert all(not isinstance(value, dict | list) for row in rows for value in row.values())
    assert not list(folder.glob("*.tmp"))


@pytest.mark.long  # torch's profiler takes ten seconds to start
def test_breakdown_has_step_and_prompt() -> None:
    bench = run_bench(settings_for("tiny-moe"), ("breakdown",), (), None, lambda text: None)
    assert bench.is_good
    (step,) = [row for row in bench.rows if row["part"] == "breakdown"]
    (prompt,) = [row for row in bench.rows if row["part"] == "breakdown of a prompt"]
    assert step["busy_ms"] > 0 and step["gap_ms"] == step["step_ms"] - step["busy_ms"]
    assert prompt["prompt"] == TINY.breakdown_prompt_len and prompt["prefill_ms"] > 0
    assert 2 <= step["experts_read"] <= 4
    assert any(row["part"] == "kernels" and row["ms"] > 0 for row in bench.rows)
    assert "| floor ms |" in tables(bench.rows)


def test_stress_test_has_one_answer_in_both_modes(bench: Bench) -> None:
    rows = [row for row in bench.rows if row["part"] == "stress"]
    assert {(one["mode"], one["request"]) for one in rows} == {
        (mode, asked) for mode in ("auto", "verify", "off") for asked in ("greedy", "sampled", "penalised")
    }
    assert all(one["distinct"] == 1 for one in rows if one["mode"] != "off")
    assert all(one["runs"] == TINY.stress_runs // 3 for one in rows if one["mode"] != "off")


def test_tables_show_every_part(bench: Bench) -> None:
    text = tables(bench.rows)
    for words in ("through `LLM.generate`", "| / ordinary | / off |", "split k", "random loads"):
        assert words in text
    assert "| mixed | 400 of mixed lengths |" in text and "8 certified" in text and "8 verified" in text
    assert "Error" not in text


def test_plot_is_drawn(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_cells(bench.header, bench.rows, tmp_path / "cells.png")
    assert (tmp_path / "cells.png").stat().st_size > 1000


@pytest.mark.long
def test_start_is_measured_twice() -> None:
    bench = run_bench(TINY, ("start",), (), None, lambda text: None)
    assert bench.is_good
    assert [(row["variant"], row["start"]) for row in bench.rows] == [
        (variant, start) for variant in ("deterministic", "off") for start in ("first", "second")
    ]
    assert all(0 < row["without_weights"] < row["first_token_seconds"] for row in bench.rows)


# What goes wrong


def test_failed_part_is_noted_and_the_next_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(gpu_bench, "run_breakdown", fail)
    logged: list[str] = []
    bench = run_bench(TINY, ("breakdown", "certificate"), (), tmp_path, logged.append)
    assert bench.rows[0] == {"part": "breakdown", "error": "RuntimeError: no device"}
    assert bench.rows[1]["part"] == "certificate" and not bench.is_good
    assert "Error in breakdown: RuntimeError: no device" in tables(bench.rows)
    assert any("Traceback" in line for line in logged)


def test_missing_certificate_is_an_error() -> None:
    figures: Figures = {"answers": 8, "certified": 6, "verified": 2}
    assert _missing_guarantee(DETERMINISTIC, figures) == "2 of 8 answers are not certified"
    assert _missing_guarantee(VERIFY, figures) is None
    assert _missing_guarantee(DETERMINISTIC, {"answers": 8, "certified": 8}) is None
    assert _missing_guarantee(OFF, {"answers": 8}) is None


def test_after_the_time_no_measurement_begins() -> None:
    bench = run_bench(replace(TINY, minutes=0), PARTS, NAMES, None, lambda text: None)
    measured = [row for row in bench.rows if "cut_off" not in row]
    assert measured == [] and len(bench.rows) == len(PARTS)
    assert "cells: no measurement began after 0 minutes" in tables(bench.rows)


# Choices


def test_names_choose_parts_and_cells() -> None:
    assert parse_names(None) == (PARTS, tuple(CELLS))
    assert parse_names("mixed,breakdown") == (("cells", "breakdown"), ("mixed",))
    assert parse_names("long, uniform-1") == (("cells",), ("uniform-1", "long-8k", "long-30k", "long-100k"))
    assert parse_names("cells")[1] == tuple(CELLS)
    with pytest.raises(ConfigError, match=r"no part unif; .*uniform-257"):
        parse_names("unif,start")


def test_engines_hold_their_weights_together_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_bench, "default_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (139 << 30, 139 << 30))
    cells = [cell for cell in CELLS.values() if VERIFY not in cell.variants]
    ((modes, options),) = _groups(GpuSettings(), ["auto", "off"], cells)
    assert modes == ["auto", "off"] and 37 << 30 < options["kv_memory"] < 45 << 30
    large = GpuSettings(model="qwen3-30b-a3b")
    assert _groups(large, ["auto", "off"], [CELLS["uniform-256"]]) == [(["auto"], {}), (["off"], {})]
    assert _groups(large, ["auto"], [CELLS["uniform-256"]]) == [(["auto"], {})]


@pytest.mark.parametrize(
    ("value", "text"), [(10424.4, "10,424"), (234.567, "234.6"), (8.1, "8.1"), (0.98765, "0.9877"), (5, "5")]
)
def test_numbers_are_shown_with_four_digits(value: Any, text: str) -> None:
    assert shown(value) == text


# Kernels


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
    config = shape_config("llama-3.1-8b")
    assert floor_ms(config, 1, 0, torch.bfloat16) == pytest.approx(3.5, abs=0.1)
    per_sequence = floor_ms(config, 1, 640, torch.bfloat16) - floor_ms(config, 0, 640, torch.bfloat16)
    assert per_sequence == pytest.approx(0.0195, abs=0.001)


# The command


def test_command_measures_and_shows_again(tmp_path: Path) -> None:
    command = ["bench", "gpu", "--model", "tiny", "--only", "certificate", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "split k" in done.stdout
    file = tmp_path / "bench-gpu.json"
    shown = CliRunner().invoke(app, ["bench", "gpu", "--show", str(file), "--show", str(file)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("| down |") == 2 * done.stdout.count("| down |") > 0
    (tmp_path / "other.json").write_text('{"sections": {}}')
    with pytest.raises(ConfigError, match="has no rows"):
        read_rows(tmp_path / "other.json")
