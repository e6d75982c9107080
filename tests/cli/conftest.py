"""A tiny model for the command line, and the command line as a function."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app

Holdfast = Callable[..., Result]


@pytest.fixture(scope="session")
def model(tiny_llama: Path) -> str:
    return str(tiny_llama)


@pytest.fixture
def holdfast() -> Holdfast:
    """`holdfast("generate", "Hello")`, in this process. `code`: what it must exit with."""

    def call(*arguments: str | Path, stdin: str | None = None, code: int = 0) -> Result:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        assert done.exit_code == code, done.output
        return done

    return call


def _accept_interrupts() -> None:
    """A test run in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def interrupted_chat() -> Callable[..., tuple[bytes, bytes]]:
    """`interrupted_chat(arguments, lines)` gives stdout and stderr of a chat.

    Its first answer is interrupted after its first byte. The lines follow, or what a function returns then.
    """

    def call(arguments: list[str], lines: bytes | Callable[[], bytes]) -> tuple[bytes, bytes]:
        command = [sys.executable, "-m", "holdfast", "chat", *arguments]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        chat = subprocess.Popen(command, **pipes, bufsize=0, preexec_fn=_accept_interrupts)
        never_hang = threading.Timer(60, chat.kill)
        never_hang.start()
        assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
        chat.stdin.write(b"hello\n")
        first = chat.stdout.read(1)
        assert first, f"the chat ended: {chat.stderr.read().decode()}"
        chat.send_signal(signal.SIGINT)
        noted = chat.stderr.readline()
        assert b"abort" in noted
        said, more = chat.communicate(lines if isinstance(lines, bytes) else lines(), timeout=60)
        never_hang.cancel()
        assert chat.returncode == 0
        return first + said, noted + more

    return call
