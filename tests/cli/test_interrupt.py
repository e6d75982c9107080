"""Ctrl-C in `holdfast chat` ends the answer, not the conversation."""

import signal
import subprocess
import sys
import threading

import pytest

from support.tiny import tiny_model


@pytest.fixture
def long_model(tmp_path):
    """A long context: the answer is still streaming when the signal comes."""
    return str(tiny_model(tmp_path / "long", max_position_embeddings=40_000))


def accept_interrupts() -> None:
    """A test run in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_interrupt_cancels_the_answer_and_the_chat_continues(long_model):
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "chat",
        long_model,
        "-n",
        "39000",
        "-t",
        "0.9",
        "--min-p",
        "0",
        "--ignore-eos",
    ]
    chat = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        preexec_fn=accept_interrupts,
    )
    never_hang = threading.Timer(60, chat.kill)
    never_hang.start()
    assert chat.stdin is not None
    assert chat.stdout is not None
    assert chat.stderr is not None
    chat.stdin.write(b"the dog\n")
    if not chat.stdout.read(1):
        pytest.fail(f"the chat ended: {chat.stderr.read().decode()}")
    chat.send_signal(signal.SIGINT)
    assert b"abort" in chat.stderr.readline()
    _, noted = chat.communicate(b"/reset\n/exit\n", timeout=60)
    assert b"cleared" in noted
    never_hang.cancel()
    assert chat.returncode == 0
