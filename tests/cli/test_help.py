"""--help and --version: fast, without torch, and complete."""

import subprocess
import sys

import pytest
from typer.main import get_command

from holdfast.cli.main import app
from holdfast.version import __version__

COMMANDS = {
    ("generate",): [
        *(
            "--model",
            "--temperature",
            "--seed",
            "--deterministic",
            "--json",
            "--kernels",
            "--device",
            "--load-format",
            "--n ",
            "--bad-word",
        ),
        *(
            "--repetition-penalty",
            "--frequency-penalty",
            "--presence-penalty",
            "--logit-bias",
            "--bad-token-id",
        ),
        *("--allowed-token-id", "--prompt-logprobs", "--echo", "--receipt", "--no-prompt-in-receipt"),
        *("--json-schema", "--json-object", "--regex", "--choice", "--lark", "--speculation"),
        *("--spot-check-rate", "--no-prefix-cache", "--thoughts", "--no-think"),
    ],
    ("chat",): [
        "--no-thoughts",
        "--no-think",
        "--url",
        "--api-key",
        "--system",
        "--deterministic",
        "--repetition-penalty",
        "--speculation",
        "--spot-check-rate",
    ],
    ("score",): ["[prompt]", "[completion]", "--prompt-ids", "--completion-ids", "--file", "--ordinary"],
    ("certify",): ["--fresh", "--json", "--shapes", "--device"],
    ("replay",): ["--force", "--against", "--load", "--prompt-ids", "--json", "--num-threads"],
    ("continue",): ["--max-tokens", "--force", "--receipt", "--prompt-ids", "--json", "--num-threads"],
    ("models",): ["--json", "built-in ones"],
    ("receipt", "redact"): ["--keep-salt"],
    ("doctor",): ["default model", "fingerprint"],
    ("serve",): [
        *(
            "--host",
            "--port",
            "--api-key",
            "--served-model-name",
            "--chat-template",
            "--config",
            "--inspector",
        ),
        *("--dtype", "--max-model-len", "--max-num-seqs", "--kv-memory"),
        *("--determinism", "--max-body-bytes", "--max-waiting", "--request-timeout", "--drain-timeout"),
        *("--log-format", "--log-level", "--otlp-endpoint", "HOLDFAST_MODEL", "HOLDFAST_API_KEY"),
        *("\nServer:\n", "\nLimits:\n", "\nEngine:\n", "\nLogs:\n", "HOLDFAST_KV_MEMORY"),
    ],
    ("bench",): ["demo", "determinism", "serve", "speed"],
    ("bench", "speed"): ["--rounds", "--num-threads", "--device"],
    ("bench", "serve"): ["--url", "--clients", "--seconds", "--prompts", "--max-num-seqs"],
    ("bench", "determinism"): ["--runs"],
    ("bench", "demo"): ["forced rollbacks", "--kernels"],
    ("train",): ["thinking"],
    ("train", "thinking"): ["--out", "--preset", "--task", "--form", "--set"],
    ("eval",): ["thinking"],
    ("eval", "thinking"): [
        *("--baseline", "--task", "--events", "--count", "--seed", "--ablate", "--latency"),
        *("--out", "--device", "--max-num-seqs"),
    ],
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
    for name in (
        "serve",
        "generate",
        "chat",
        "score",
        "certify",
        "replay",
        "continue",
        "models",
        "doctor",
        "receipt",
        "bench",
        "train",
        "eval",
    ):
        assert f" {name} " in result.stdout


def _all_commands(command, path=()):
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from _all_commands(command.get_command(None, name), (*path, name))


def test_help_is_readable_in_80_columns(holdfast, monkeypatch):
    """No line is longer, and no name of an option or of a choice is cut off."""
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in _all_commands(get_command(app)):
        text = holdfast(*path, "--help").stdout
        assert max(map(len, text.splitlines())) <= 80, path
        assert "…" not in text, path
        for param in command.params:
            if not getattr(param, "hidden", False):
                assert all(name in text for name in (*param.opts, *param.secondary_opts)), (path, param.opts)


def test_version(holdfast):
    assert holdfast("--version").stdout == f"holdfast {__version__}\n"


def test_command_is_imported_when_it_is_named():
    code = (
        "import sys; from holdfast.cli.main import app\ntry: app(['models', '--help'])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('holdfast.cli.commands.')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "['holdfast.cli.commands.models']"


def test_help_does_not_import_torch():
    code = (
        "import sys; from holdfast.cli.main import app; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_unknown_command_is_a_usage_error(holdfast):
    assert holdfast("sing").exit_code == 2
