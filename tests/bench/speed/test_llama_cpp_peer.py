"""llama.cpp as a peer: its programs are found, run with the same work, and their figures read."""

import json
import sys
from pathlib import Path

import pytest

from holdfast.bench.speed.cpu import LLAMA_CPP, ORDINARY, CpuSpeedReport
from holdfast.bench.speed.cpu_table import show_speed
from holdfast.bench.speed.llama_cpp import find_llama_cpp
from holdfast.bench.tables import open_console
from holdfast.errors import ConfigError, EngineStopped

PROGRAM = f"""#!{sys.executable} -S
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("llama-batched-bench", "llama-completion"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_prefill_and_decode_are_timed_apart(folder: Path) -> None:
    peer = find_llama_cpp(folder, Path("model.gguf"), 2)
    assert peer.version == "8123 (abc)"
    prompts = [[1] * 32] * 8
    assert peer.seconds(prompts, 1) == 32
    assert peer.seconds(prompts, 64) == 63 * 8
    assert peer.command[:3] == [str(folder / "llama-completion"), "-m", "model.gguf"]


def test_failure_of_the_program_is_shown(folder: Path) -> None:
    with pytest.raises(EngineStopped, match="this is why"):
        find_llama_cpp(folder, Path("broken.gguf"), 2).seconds([[1]], 1)


def test_missing_programs_and_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"llama-batched-bench and llama-completion not found.*--peer-dir"):
        find_llama_cpp(tmp_path, Path("model.gguf"), 2)
    with pytest.raises(ConfigError, match="GGUF"):
        find_llama_cpp(tmp_path, Path("model"), 2)


def test_table_compares_with_the_peer(capsys: pytest.CaptureFixture[str]) -> None:
    report = CpuSpeedReport("a machine", 2, "2.13", "tiny", "bfloat16", None, 1, 11, peer=LLAMA_CPP.name)
    report.speed = {LLAMA_CPP.name: {"1": 10.0}, ORDINARY.name: {"1": 15.0}}
    report.peer_version = "8123"
    report.peer_command = {"first_byte_seconds": 0.25, "peak_resident_bytes": 150e6}
    show_speed(report, open_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert "ordinary / llama.cpp" in shown and "1.50x" in shown
    assert "llama.cpp 8123: first byte after 0.25 s, peak resident memory 150 MB" in shown
    assert json.loads(json.dumps(vars(report)))["hugging_face_dtype"] is None
