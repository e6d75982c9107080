"""--help and --version: fast, without torch, and complete."""

import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from holdfast.cli.main import app
from holdfast.version import __version__
from scripts.option_reference import update

ROOT = Path(__file__).parents[2]
PROGRAM = get_command(app)


def _all_commands(command, path=()):
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from _all_commands(command.get_command(None, name), (*path, name))


def test_help_is_readable_in_80_columns(holdfast, monkeypatch):
    """Every command's help has every option. No line is longer, and no name is cut off."""
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in _all_commands(PROGRAM):
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


def test_operations_page_has_the_current_options():
    page = ROOT / "docs" / "operations.md"
    text = page.read_text(encoding="utf-8")
    assert text == update(text), f"run: python scripts/option_reference.py {page}"
