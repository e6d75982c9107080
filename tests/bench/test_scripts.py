"""The scripts in benchmarks/: each starts, rows are written and shown, and what they compute of times."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from holdfast.errors import ConfigError, EngineStopped

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
Load = Callable[[str], ModuleType]

# Runs scripts one after the other in one process, which imports torch once, and prints their exit codes.
RUN_ALL = """
import json, runpy, sys
codes = []
for name, *arguments in json.loads(sys.argv[1]):
    sys.argv = [name, *arguments]
    try:
        runpy.run_path(name, run_name="__main__")
        codes.append(0)
    except SystemExit as end:
        codes.append(end.code or 0)
print(json.dumps(codes))
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import a script as a module. None of them stays: tests have modules of the same names."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    hidden = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(hidden)


def run_scripts(*commands: tuple[str | Path, ...]) -> tuple[list[int], str]:
    """The exit codes, and all that was printed, with nothing but src and the scripts on the path."""
    given = json.dumps([[str(SCRIPTS / f"{name}.py"), *map(str, rest)] for name, *rest in commands])
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, given],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(SCRIPTS)))},
        capture_output=True,
        text=True,
        check=False,
        cwd=SCRIPTS.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


def test_every_script_says_how_it_is_used() -> None:
    scripts = [name for name in NAMES if name not in ("measure", "engines")]
    codes, text = run_scripts(*((name, "--help") for name in scripts))
    assert codes == [0] * len(scripts)
    assert text.count("python benchmarks/") >= len(scripts)


def test_rows_are_written_and_shown_again(tmp_path: Path) -> None:
    recording = ROOT / "src/holdfast/recordings/h200-qwen2.5-1.5b.json"
    file = tmp_path / "bench-gpu-certificate.json"
    codes, text = run_scripts(
        ("gpu_certificate", "--models", "tiny", "--out", tmp_path),
        ("gpu", "--show", file, file),
        ("divergence", "--read", recording, "--save", tmp_path / "again.json"),
    )
    assert codes == [0, 0, 0], text
    assert "| plain classes |" in text and "deterministic (verify): 50 runs, 1 answers" in text
    written = json.loads(file.read_text())
    assert written["name"] == "bench-gpu-certificate" and written["machine"] and "torch" in written
    assert {row["gemm"] for row in written["rows"]} == {"qkv", "o", "gate_up", "down", "head"}
    assert all(not isinstance(value, dict | list) for row in written["rows"] for value in row.values())
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(recording.read_text())


def test_tables_of_the_documentation_are_those_of_their_data() -> None:
    codes, _ = run_scripts(("figures", "--check"))
    assert codes == [0]


@pytest.mark.long
def test_cells_of_a_tiny_model_are_certified(tmp_path: Path) -> None:
    names = "uniform-8,prefill-8,mixed,json,verify-32"
    plot = tmp_path / "cells.png"
    command = ("gpu", "--model", "tiny", "--rounds", "1", "--out", tmp_path)
    codes, text = run_scripts(
        (*command, "--only", names, "--plot", plot),
        ("gpu_step", "--model", "tiny-moe"),
        ("interference", tmp_path / "none", "--modes", "auto"),
    )
    assert codes[:2] == [0, 0] and codes[2] == 1, text
    rows = json.loads((tmp_path / "bench-gpu.json").read_text())["rows"]
    assert {row["cell"] for row in rows if row["part"] == "cells"} == set(names.split(","))
    assert all(row["certified"] == row["answers"] for row in rows if row.get("variant") == "deterministic")
    assert "8 verified" in text and "| / ordinary | / off |" in text and "| floor ms |" in text
    assert plot.stat().st_size > 1000


def test_failed_part_is_noted_and_the_next_one_runs(load: Load, tmp_path: Path) -> None:
    measure = load("measure")
    bench = measure.Bench("some", tmp_path)
    with bench.part(part="one"):
        raise RuntimeError("no device")
    bench.row(part="two", speed=10424.4, note=None)
    assert bench.rows == [
        {"part": "one", "error": "RuntimeError: no device"},
        {"part": "two", "speed": 10424.4},
    ]
    assert not bench.is_good
    header, rows = measure.read_rows(tmp_path / "some.json")
    assert (header, rows) == (bench.header, bench.rows) and not list(tmp_path.glob("*.tmp"))
    assert (
        measure.table(rows, "part")
        == "| error | speed |\n| --- | --- |\n| RuntimeError: no device |  |\n|  | 10,424 |"
    )


def test_after_the_time_no_measurement_begins(load: Load) -> None:
    bench = load("measure").Bench("some", None, minutes=0)
    assert bench.is_over("cells") and bench.is_over("cells")
    assert bench.rows == [{"part": "cells", "cut_off": "no measurement began after 0 minutes"}]


def test_names_choose_parts_and_cells(load: Load) -> None:
    gpu = load("gpu")
    assert gpu.parse_names(None) == (gpu.PARTS, tuple(gpu.CELLS))
    assert gpu.parse_names("mixed,start") == (("start", "cells"), ("mixed",))
    assert gpu.parse_names("long")[1] == ("long-8k", "long-30k", "long-100k")
    with pytest.raises(SystemExit, match=r"no part unif; .*uniform-257"):
        gpu.parse_names("unif,start")


def test_missing_certificate_is_an_error(load: Load) -> None:
    gpu = load("gpu")
    figures = {"answers": 8, "certified": 6, "verified": 2}
    assert gpu._missing_guarantee(gpu.DETERMINISTIC, figures) == "2 of 8 answers are not certified"
    assert gpu._missing_guarantee(gpu.VERIFY, figures) is None
    assert gpu._missing_guarantee(gpu.OFF, {"answers": 8}) is None


def test_engines_hold_their_weights_together_where_they_fit(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = load("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (139 << 30, 139 << 30))
    cells = [cell for cell in gpu.CELLS.values() if gpu.VERIFY not in cell.variants]
    small, large = (gpu.Settings(name, None, 1, {}) for name in ("llama-3.1-8b", "qwen3-30b-a3b"))
    ((modes, options),) = gpu._groups(small, ["auto", "off"], cells)
    assert modes == ["auto", "off"] and 37 << 30 < options["kv_memory"] < 45 << 30
    alone = [(["auto"], {}), (["off"], {})]
    assert gpu._groups(large, ["auto", "off"], [gpu.CELLS["uniform-256"]]) == alone


def test_kernels_are_added_up(load: Load) -> None:
    step = load("gpu_step")
    overlapping = [step.KernelEvent("a", *span) for span in ((0, 10), (5, 12), (20, 21), (6, 8))]
    assert step.busy_ns(overlapping) == 13
    kernels, now = [], 0
    for _ in range(2):
        for name, length in (("nvjet_small", 2), ("nvjet_large", 9), ("rms_norm_kernel", 1), ("mystery", 3)):
            kernels.append(step.KernelEvent(name, now, now + length * 1_000_000))
            now += length * 1_000_000
    # The longest product of each step is the head.
    assert step.times_by_kind(kernels, 2) == {"head": 9.0, "other": 3.0, "products": 2.0, "norms": 1.0}


def test_memory_floor_is_weights_and_kv(load: Load) -> None:
    step = load("gpu_step")
    config = load("engines").shape_config("llama-3.1-8b")
    assert step.floor_ms(config, 1, 0, torch.bfloat16) == pytest.approx(3.5, abs=0.1)
    one = step.floor_ms(config, 1, 640, torch.bfloat16) - step.floor_ms(config, 0, 640, torch.bfloat16)
    assert one == pytest.approx(0.0195, abs=0.001)


def test_profile_counts_the_event_loop_only(load: Load) -> None:
    stacks = [
        "main;run_event_loop (a.py:1);f (b.py:2) 3",
        "main;run_event_loop (a.py:1);g (b.py:9) 1",
        "f (b.py:2) 9",
    ]
    shares: dict[str, Any] = dict(load("frontend").shares_of(stacks))
    assert shares["f (b.py)"] == 0.75 and shares["g (b.py)"] == 0.25


LLAMA_CPP = f"""#!{sys.executable} -S
import json, sys
arguments = sys.argv[1:]
if "--version" in arguments:
    print("version: 8123 (abc)", file=sys.stderr)
elif "broken.gguf" in " ".join(arguments):
    sys.exit("this is why")
else:
    given = dict(zip(arguments[::2], arguments[1::2]))
    print("llama_model_loader: loaded")
    print(json.dumps({{"t_pp": float(given["-npp"]), "t_tg": float(given["-ntg"]) * float(given["-npl"])}}))
"""


def test_llama_cpp_times_prefill_and_decode_apart(load: Load, tmp_path: Path) -> None:
    peers = load("cpu_peers")
    with pytest.raises(ConfigError, match=r"llama-batched-bench and llama-completion not found.*--peer-dir"):
        peers.find_llama_cpp(tmp_path, Path("model.gguf"), 2)
    for name in ("llama-batched-bench", "llama-completion"):
        (tmp_path / name).write_text(LLAMA_CPP)
        (tmp_path / name).chmod(0o755)
    peer = peers.find_llama_cpp(tmp_path, Path("model.gguf"), 2)
    assert peer.version == "8123 (abc)"
    prompts = [[1] * 32] * 8
    assert (peer.seconds(prompts, 1), peer.seconds(prompts, 64)) == (32, 63 * 8)
    with pytest.raises(EngineStopped, match="this is why"):
        peers.find_llama_cpp(tmp_path, Path("broken.gguf"), 2).seconds([[1]], 1)


@pytest.mark.long
def test_frontend_and_features_are_measured(tiny_llama: Path, tmp_path: Path) -> None:
    frontend = ("frontend", "--model", tiny_llama, "--streams", "1,8", "--num-tokens", "16", "--seconds", "1")
    features = ("features", "structured", tiny_llama, "--requests", "8", "--dtype", "fp32")
    codes, text = run_scripts(frontend, features)
    assert codes == [0, 0], text
    assert "tok/s of one core" in text and "| mask us |" in text
