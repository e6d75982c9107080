"""Help and version answer at once and name everything there is."""

import subprocess
import sys

import pytest

from holdfast.version import __version__

COMMANDS = {
    ("generate",): ["--model", "--temperature", "--seed", "--deterministic", "--json", "--kernels"],
    ("chat",): ["--system", "--deterministic"],
    ("certify",): ["--fresh", "--json"],
    ("replay",): ["--force", "--load", "--prompt-ids", "--json", "--num-threads"],
    ("doctor",): ["default model"],
    ("bench",): ["demo", "cpu", "needle"],
    ("bench", "cpu"): ["--rounds"],
    ("bench", "needle"): ["--runs"],
    ("bench", "demo"): ["forced rollbacks"],
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command(holdfast, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = holdfast(*command, "--help")
    assert result.exit_code == 0
    for word in COMMANDS[command]:
        assert word in result.stdout


def test_help_names_every_command(holdfast):
    result = holdfast("--help")
    for name in ("generate", "chat", "certify", "replay", "doctor", "bench"):
        assert f" {name} " in result.stdout


def test_version(holdfast):
    assert holdfast("--version").stdout == f"holdfast {__version__}\n"


def test_help_does_without_torch():
    code = (
        "import sys; from holdfast.cli.main import app; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_an_unknown_command_is_a_usage_error(holdfast):
    assert holdfast("sing").exit_code == 2
