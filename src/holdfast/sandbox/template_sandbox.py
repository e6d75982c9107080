"""One chat template, run where it can do no harm.

A template comes with a model file: it is a stranger's program. jinja2's sandbox keeps it from Python's
insides, but not from looping for ever or from building a string larger than the machine, and there are too
many ways to do either (operators, filters, format widths, macros that call themselves) to intercept them
one by one inside this process: a single long call into C cannot be interrupted from a thread. So each
template has a process of its own, bounded by the kernel in memory and CPU time and by us in wall time; what
passes a bound is killed, and the next rendering begins with a fresh process.

It costs about 0.1 s once, which `warm` lets run beside the loading of weights, and well under a millisecond
for each rendering after. The process holds nothing but jinja2, gets no environment, and goes when its
engine goes.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from holdfast.errors import TemplateError

_WORKER = Path(__file__).with_name("template_worker.py")
_START_SECONDS = 30.0  # our own code and jinja2's: slow only on a machine that is very busy
_MAX_SOURCE_CHARS = 1 << 20
_BYTES_A_CHAR = 12  # JSON writes a character as at most two escapes of six


@dataclass(frozen=True)
class TemplateLimits:
    """What one rendering may use. `max_chars` is on top of the size of the messages themselves."""

    cpu_seconds: float = 2.0
    wall_seconds: float = 5.0
    memory_bytes: int = 512 << 20
    max_chars: int = 4 << 20


class _WorkerGoneError(Exception):
    """The process ended, or was ended, before it answered."""


class TemplateSandbox:
    """Renders one template, from any thread, one rendering at a time."""

    def __init__(self, source: str, limits: TemplateLimits | None = None) -> None:
        self._source = source
        self._limits = limits or TemplateLimits()
        self._lock = threading.Lock()
        self._holder = _Holder()
        self._compiled = False
        self._refusal: str | None = None
        weakref.finalize(self, self._holder.end)
        if len(source) > _MAX_SOURCE_CHARS:
            self._refusal = f"it is larger than a template may be ({_MAX_SOURCE_CHARS} characters)"

    def warm(self) -> None:
        """Start the process without waiting for it. Never needed, never wrong, never raises."""
        with self._lock:
            if self._refusal is None and self._holder.process is None:
                try:
                    self._start()
                except (_WorkerGoneError, OSError):
                    self._holder.end()

    def close(self) -> None:
        """End the process; a later rendering starts another."""
        with self._lock:
            self._holder.end()

    def render(self, variables: Mapping[str, object], *, date: str) -> str:
        """The text the template makes of plain JSON values; `date` is what `strftime_now` tells."""
        request = {"date": date, "cpu_seconds": self._limits.cpu_seconds}
        size = len(json.dumps(variables))
        request_json = json.dumps(
            {**request, "variables": variables, "max_chars": self._limits.max_chars + size}
        )
        with self._lock:
            try:
                return self._render(request_json.encode(), max_chars=self._limits.max_chars + size)
            except _WorkerGoneError as gone:
                self._holder.end()
                self._fail(str(gone))
            except OSError as error:
                self._holder.end()
                self._fail(f"its process cannot be started: {error.strerror or error}")
            except TemplateError:
                raise
            except BaseException:  # an answer may still be on its way: nothing may read it as its own
                self._holder.end()
                raise

    def _render(self, request: bytes, *, max_chars: int) -> str:
        process = self._compile()
        deadline = time.monotonic() + self._limits.wall_seconds
        _send(process, request, deadline)
        answer = self._receive(process, deadline, max_chars * _BYTES_A_CHAR + 4096)
        if "error" in answer:
            self._fail(answer["error"])
        return answer["text"]

    def _compile(self) -> "subprocess.Popen[bytes]":
        """A running process that has compiled the template. A template that cannot be compiled never can."""
        if self._refusal is not None:
            self._fail(self._refusal)
        process = self._holder.process if self._holder.is_ours() else None
        if process is None or process.poll() is not None:
            process = self._start()
        if not self._compiled:
            try:
                answer = self._receive(process, time.monotonic() + _START_SECONDS, 4096)
            except _WorkerGoneError as gone:
                if process.poll() == -signal.SIGPROF:
                    self._refusal = str(gone)
                raise
            if "error" in answer:
                self._refusal = answer["error"]
                self._holder.end()
                self._fail(self._refusal)
            self._compiled = True
        return process

    def _start(self) -> "subprocess.Popen[bytes]":
        self._holder.end()
        self._compiled = False
        process = self._holder.start()
        limits = {"memory_bytes": self._limits.memory_bytes, "cpu_seconds": self._limits.cpu_seconds}
        message = json.dumps({"source": self._source, **limits}).encode()
        _send(process, message, time.monotonic() + _START_SECONDS)
        return process

    def _receive(self, process: "subprocess.Popen[bytes]", deadline: float, max_bytes: int) -> dict[str, str]:
        try:
            length = int.from_bytes(_read(process, 8, deadline), "big")
            if length > max_bytes:
                raise _WorkerGoneError("it answered with more than it may")
            answer: dict[str, str] = json.loads(_read(process, length, deadline))
        except EOFError:
            raise _WorkerGoneError(self._explain_end(process)) from None
        return answer

    def _explain_end(self, process: "subprocess.Popen[bytes]") -> str:
        status = process.wait()
        if status == -signal.SIGPROF:
            return f"it computed for more than {self._limits.cpu_seconds:g} seconds"
        return f"its process broke off ({f'signal {-status}' if status < 0 else f'exit status {status}'})"

    def _fail(self, reason: str) -> NoReturn:
        raise TemplateError(f"the chat template failed: {reason}")


class _Holder:
    """The one process of a sandbox. Ending it is safe at any time, from the garbage collector too."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()

    def is_ours(self) -> bool:
        """False in a fork of the process that started it."""
        return self._pid == os.getpid()

    def start(self) -> "subprocess.Popen[bytes]":
        places = {str(Path(_origin(name)).parents[1]): None for name in ("jinja2", "markupsafe")}
        # -I -S: no environment, no user's packages, no start-up hooks; -B: writes nothing
        command = [sys.executable, "-I", "-S", "-B", str(_WORKER), *places]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self.process, self._pid = process, os.getpid()
        return process

    def end(self) -> None:
        process, self.process = self.process, None
        if process is None or not self.is_ours():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _origin(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise TemplateError(f"chat templates need {name}, which is not installed")
    return spec.origin


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _WorkerGoneError("it took too long")


def _send(process: "subprocess.Popen[bytes]", payload: bytes, deadline: float) -> None:
    assert process.stdin is not None
    fd = process.stdin.fileno()
    message = memoryview(len(payload).to_bytes(8, "big") + payload)
    while message:
        _wait(fd, select.POLLOUT, deadline)
        try:
            message = message[os.write(fd, message) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            return  # it has ended; reading its answer will tell why


def _read(process: "subprocess.Popen[bytes]", count: int, deadline: float) -> bytes:
    assert process.stdout is not None
    fd = process.stdout.fileno()
    pieces: list[bytes] = []
    while count:
        _wait(fd, select.POLLIN, deadline)
        try:
            piece = os.read(fd, min(count, 1 << 20))
        except BlockingIOError:
            continue
        if not piece:
            raise EOFError
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
