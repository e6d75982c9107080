"""A worker process for untrusted programs, and the only code that starts, asks and ends one.

A worker is one Python file beside this module. `worker_process` says in which Python it runs and which frames it
gets: a set-up, then requests, each of which has one answer. The kernel limits its memory and CPU time; the
supervisor adds a deadline for every answer. SIGUSR1 tells a worker that the request under way is not needed any
more; it answers soon, with anything. After a timeout, a crash or an interrupted request the process is killed, so
a late answer can never be read as the answer to another request; the next request starts a fresh process.

The process ends with its supervisor, and, at the end of its input, with the process that started it. It has a
lower priority: what a client makes it compute takes CPU time that others leave.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.core.cancel_token import Cancelled, CancelToken
from holdfast.core.framing import MAX_FRAME_BYTES, ConnectionLost, FrameTooLong, pack_frame, read_frame

_PROGRAM = Path(__file__).with_name("worker_process.py")
_SETUP_SECONDS = 60.0  # imports and reads a vocabulary: slow only on a very busy machine
_MAX_SETUP_BYTES = 4096
_NICENESS = 5  # about a third of the CPU time of the engine where both want a core
_LOWEST_PRIORITY = 19
# All of it. What a worker answers depends neither on the process nor on the machine's time zone and locale. Keys that
# collide under the known hash seed cost their client the CPU time of one request.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC0"}


class WorkerLost(Exception):
    """The process ended, or was ended, before it answered. `signal` ended it, if one did."""

    def __init__(self, reason: str, signal: int | None = None) -> None:
        super().__init__(reason)
        self.signal = signal


class SetupLost(WorkerLost):
    """The process was lost while it worked on its set-up."""


class SetupRefused(Exception):
    """The worker answered its set-up with an error."""


class WorkerSupervisor:
    """`num_workers` processes of one kind, started when needed. Any thread may use it.

    A process answers one request at a time. The second is started when the first is busy, and so on.
    """

    def __init__(
        self,
        worker: str,
        packages: Sequence[str],
        make_setup: Callable[[], Mapping[str, Any]],
        num_workers: int = 1,
    ) -> None:
        """`worker` is a file in this folder, `packages` the third-party ones it imports."""
        path = Path(__file__).with_name(worker)
        self._workers = tuple(_Worker(path, packages, make_setup) for _ in range(num_workers))
        self._idle = list(self._workers)
        self._changed = threading.Condition()
        for one in self._workers:
            weakref.finalize(self, one.end)

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ids of the processes that run now."""
        return tuple(pid for one in self._workers if (pid := one.pid) is not None)

    def warm(self) -> None:
        """Start a process and send its set-up, without waiting. Optional; never raises."""
        with self._one_idle() as worker:
            worker.warm()

    def request(
        self,
        message: Mapping[str, Any],
        *,
        seconds: float,
        max_bytes: int = MAX_FRAME_BYTES,
        token: CancelToken | None = None,
    ) -> dict[str, Any]:
        """Return a worker's answer. Wait for an idle one; `seconds` are those of the answer alone. Raises
        `WorkerLost`, `SetupRefused`, or, if no process can be started, `OSError` or `ImportError`.
        If the token is cancelled, raises `Cancelled`."""
        token = token or CancelToken()
        with self._one_idle(token) as worker:
            return worker.request(message, seconds, max_bytes, token)

    def close(self) -> None:
        """End the processes, each after its answer; a later request starts another."""
        for one in self._workers:
            with self._one_idle(among=(one,)) as worker:
                worker.end()

    @contextmanager
    def _one_idle(
        self, token: CancelToken | None = None, among: Sequence["_Worker"] | None = None
    ) -> Iterator["_Worker"]:
        """Yield a worker for one use, one that was started if there is a choice."""
        token = token or CancelToken()
        with token.on_cancel(self._wake), self._changed:
            while not (idle := [one for one in self._idle if among is None or one in among]):
                self._changed.wait()
                token.check()
            worker = max(idle, key=lambda one: one.pid is not None)
            self._idle.remove(worker)
        try:
            yield worker
        finally:
            with self._changed:
                self._idle.append(worker)
                self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Worker:
    """One process, its socket, and whether it is set up. Used by one thread at a time.

    `end` is safe at any time, from the garbage collector too.
    """

    def __init__(
        self, path: Path, packages: Sequence[str], make_setup: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._path = path
        self._packages = packages
        self._make_setup = make_setup
        self._is_set_up = False
        self._popen: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner_pid = os.getpid()

    @property
    def pid(self) -> int | None:
        return None if self._popen is None else self._popen.pid

    def warm(self) -> None:
        if not self._is_running():
            try:
                self._start()
            except (WorkerLost, OSError, ImportError):
                self.end()

    def request(
        self, message: Mapping[str, Any], seconds: float, max_bytes: int, token: CancelToken
    ) -> dict[str, Any]:
        try:
            token.check()
            if not self._is_running():
                self._start()
            if not self._is_set_up:
                self._finish_setup()
            deadline = time.monotonic() + seconds
            with token.on_cancel(self._interrupt):
                self._send(message, deadline)
                answer = self._receive(deadline, max_bytes)
            token.check()
            return answer
        except Cancelled:  # every answer was read
            raise
        except BaseException:  # the next request must not read a late answer as its own
            self.end()
            raise

    def end(self) -> None:
        popen, self._popen = self._popen, None
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if popen is not None and self._owner_pid == os.getpid():
            popen.kill()
            popen.wait()

    def _is_running(self) -> bool:
        """Return False in a fork of the process that started it, too: they cannot share a socket."""
        return self._owner_pid == os.getpid() and self._popen is not None and self._popen.poll() is None

    def _start(self) -> None:
        paths = dict.fromkeys(map(_package_root, self._packages))
        self.end()
        self._is_set_up = False
        ours, theirs = socket.socketpair()
        self._socket, self._owner_pid = ours, os.getpid()
        # -P -s -S: no user packages, no start-up hooks; -B: writes no byte code. Not -I: it ignores the hash seed.
        command = [sys.executable, "-P", "-s", "-S", "-B", str(_PROGRAM), str(self._path), *paths]
        quiet = subprocess.DEVNULL
        with theirs:
            self._popen = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=quiet, stderr=quiet, env=_ENVIRONMENT
            )
        _lower_priority(self._popen.pid)
        self._send(self._make_setup(), time.monotonic() + _SETUP_SECONDS)

    def _finish_setup(self) -> None:
        try:
            answer = self._receive(time.monotonic() + _SETUP_SECONDS, _MAX_SETUP_BYTES)
        except WorkerLost as lost:
            raise SetupLost(str(lost), lost.signal) from None
        if "error" in answer:
            raise SetupRefused(answer["error"])
        self._is_set_up = True

    def _interrupt(self) -> None:
        """Tell the process that its request is not needed any more. Any thread may call it."""
        popen = self._popen
        if popen is not None:
            popen.send_signal(signal.SIGUSR1)

    def _send(self, message: Mapping[str, Any], deadline: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            self._socket.sendall(pack_frame(json.dumps(message).encode()))
        except TimeoutError:
            raise WorkerLost("it took too long") from None
        except ConnectionError:
            pass  # the process has ended; `_receive` says why

    def _receive(self, deadline: float, max_bytes: int) -> dict[str, Any]:
        assert self._socket is not None and self._popen is not None
        try:
            answer: dict[str, Any] = json.loads(read_frame(self._socket, max_bytes, deadline=deadline))
            return answer
        except TimeoutError:
            raise WorkerLost("it took too long") from None
        except FrameTooLong:
            raise WorkerLost("its answer is longer than allowed") from None
        except ConnectionLost:
            status = self._popen.wait()
        if status < 0:
            raise WorkerLost(f"its process was ended by signal {-status}", -status)
        raise WorkerLost(f"its process ended with exit status {status}")


def _lower_priority(pid: int) -> None:
    with suppress(OSError, AttributeError):  # it has ended, or the system has no priorities
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, pid, min(_LOWEST_PRIORITY, own + _NICENESS))


def _package_root(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed")
    return str(Path(spec.origin).parents[1])
