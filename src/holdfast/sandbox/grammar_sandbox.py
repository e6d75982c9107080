"""Forms are tried here first, where they can do no harm.

A form comes from a client. llguidance bounds much of what a form can ask of it, but not all: there are schemas that compile
for half a minute, regular expressions that never finish and Lark grammars that overflow the stack, which ends the process
they are in. So each form is compiled and followed in another process (`grammar_worker`), bounded by the kernel in
time and memory; only one that passes is compiled here. The process starts with the first form, which costs about half a
second; after that a plain schema costs 20 to 40 milliseconds, once. It gets no environment and goes when its engine goes.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("grammar_worker.py")
_MAX_WAIT_SECONDS = 60.0  # a last resort: the worker itself gives up on a form long before
_MAX_ANSWER_BYTES = 1 << 16


@dataclass(frozen=True)
class GrammarLimits:
    """What compiling a form and following it for some tokens may use."""

    cpu_seconds: float = 2.0
    memory_bytes: int = 512 << 20


@dataclass(frozen=True)
class Trial:
    """What came of a form: what is wrong with it, if anything, and about how large it is compiled."""

    fault: str | None
    num_bytes: int = 0


class GrammarSandbox:
    """Tries forms, from any thread, one at a time."""

    def __init__(
        self, texts: Sequence[bytes], eos_ids: Collection[int], limits: GrammarLimits | None = None
    ) -> None:
        self._limits = limits or GrammarLimits()
        self._texts = texts
        self._eos_ids = sorted(eos_ids)
        self._lock = threading.Lock()
        self._holder = _Holder()
        weakref.finalize(self, self._holder.end)

    def warm(self) -> None:
        """Start the process and hand it the vocabulary. Never needed, never wrong, never raises."""
        with self._lock:
            try:
                self._open(time.monotonic() + _MAX_WAIT_SECONDS)
            except OSError:
                self._holder.end()

    def try_form(self, grammar: str, *, is_lark: bool) -> Trial:
        """Compile and follow a form, elsewhere."""
        limits = {"cpu_seconds": self._limits.cpu_seconds, "memory_bytes": self._limits.memory_bytes}
        request = {"grammar": grammar, "is_lark": is_lark, **limits}
        with self._lock:
            try:
                answer = self._ask(request)
            except (
                OSError,
                ValueError,
            ) as error:  # a timeout is an OSError, and so is a channel that was closed
                self._holder.end()
                return Trial(f"the process it was tried in broke off: {error}")
            except BaseException:  # an answer may still be on its way: nothing may read it as its own
                self._holder.end()
                raise
        return Trial(answer.get("error"), answer.get("num_bytes", 0))

    def close(self) -> None:
        """End the process; a later trial starts another."""
        with self._lock:
            self._holder.end()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        channel = self._open(deadline)
        _send(channel, request, deadline)
        length = int.from_bytes(_read(channel, 8, deadline), "big")
        if length > _MAX_ANSWER_BYTES:
            raise ValueError("it answered with more than it may")
        answer: dict[str, Any] = json.loads(_read(channel, length, deadline))
        return answer

    def _open(self, deadline: float) -> socket.socket:
        channel, is_new = self._holder.open()
        if is_new:
            texts = [text.decode("latin-1") for text in self._texts]
            _send(channel, {"texts": texts, "eos_ids": self._eos_ids}, deadline)
        return channel


class _Holder:
    """The one process of a sandbox. Ending it is safe at any time, from the garbage collector too."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._pid = os.getpid()

    def open(self) -> tuple[socket.socket, bool]:
        """The channel to a running process, and whether it has just been started."""
        ours = self._pid == os.getpid()  # not in a fork of the process that started it
        if ours and self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel, False
        self.end()
        return self._start(), True

    def end(self) -> None:
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if process is not None and self._pid == os.getpid():
            process.kill()
            process.wait()

    def _start(self) -> socket.socket:
        spec = find_spec("llguidance")
        if spec is None or spec.origin is None:
            raise OSError("llguidance is not installed")
        ours, theirs = socket.socketpair()
        self._channel, self._pid = ours, os.getpid()
        # -I -S: no environment, no user's packages, no start-up hooks; -B: writes nothing
        command = [sys.executable, "-I", "-S", "-B", str(_WORKER), str(Path(spec.origin).parents[1])]
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}
            )
        return ours


def _send(channel: socket.socket, message: dict[str, Any], deadline: float) -> None:
    payload = json.dumps(message).encode()
    _await(channel, deadline)
    channel.sendall(len(payload).to_bytes(8, "big") + payload)


def _read(channel: socket.socket, count: int, deadline: float) -> bytes:
    pieces: list[bytes] = []
    while count:
        _await(channel, deadline)
        piece = channel.recv(min(count, 1 << 16))
        if not piece:
            raise ConnectionError("it ended")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _await(channel: socket.socket, deadline: float) -> None:
    channel.settimeout(max(0.01, deadline - time.monotonic()))
