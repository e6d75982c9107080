"""The scripts in benchmarks/: each starts, rows are written and shown, and what they compute of times."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from support.tiny import tiny_model

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


def test_scripts_say_how_they_are_used_and_show_rows_that_were_written(tmp_path: Path) -> None:
    """The tables of the documentation are those of their data."""
    recording = ROOT / "src/holdfast/recordings/h200-qwen2.5-1.5b.json"
    file = tmp_path / "bench-gpu-certificate.json"
    scripts = [name for name in NAMES if name not in ("measure", "engines")]
    codes, text = run_scripts(
        *((name, "--help") for name in scripts),
        ("gpu_certificate", "--models", "tiny", "--out", tmp_path),
        ("divergence", "--read", recording, "--save", tmp_path / "again.json"),
        ("figures", "--check"),
    )
    assert codes == [0] * len(codes), text
    assert text.count("python benchmarks/") >= len(scripts)
    assert "| plain classes |" in text and "deterministic (verify): 50 runs, 1 answers" in text
    written = json.loads(file.read_text())
    assert written["name"] == "bench-gpu-certificate" and written["machine"] and "torch" in written
    assert {row["gemm"] for row in written["rows"]} == {"qkv", "o", "gate_up", "down", "head"}
    assert all(not isinstance(value, dict | list) for row in written["rows"] for value in row.values())
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(recording.read_text())


@pytest.mark.long
def test_cells_of_a_tiny_model_are_certified(tmp_path: Path) -> None:
    names = "uniform-8,prefill-8,mixed,json,verify-32"
    command = ("gpu", "--model", "tiny", "--rounds", "1", "--out", tmp_path)
    codes, text = run_scripts(
        (*command, "--only", names),
        ("gpu_step", "--model", "tiny-moe"),
    )
    assert codes == [0, 0], text
    rows = json.loads((tmp_path / "bench-gpu.json").read_text())["rows"]
    assert {row["cell"] for row in rows if row["part"] == "cells"} == set(names.split(","))
    assert all(row["certified"] == row["answers"] for row in rows if row.get("variant") == "deterministic")
    assert "| / off |" in text and "| floor ms |" in text


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


@pytest.mark.long
def test_frontend_and_ngram_are_measured(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny", max_position_embeddings=2048)
    frontend = ("frontend", "--model", model, "--streams", "1,8", "--num-tokens", "16", "--seconds", "1")
    ngram = ("ngram", model, "--rounds", "1", "--num-tokens", "4", "--dtype", "fp32")
    codes, text = run_scripts(frontend, ngram)
    assert codes == [0, 0], text
    assert "tok/s of one core" in text and "| gain |" in text
