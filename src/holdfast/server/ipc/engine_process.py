"""Keeps an engine process running: one that dies or hangs is started again, and its requests with it.

    starting -> ready -> restarting -> ready -> ...

A process hangs if its loop answers nothing for `hang_timeout` seconds and for 20 times its longest
step. It is killed. A configuration that the engine refuses is not tried again. A process that dies too
often within a short time, while no request gets an output, is given up, and the server ends.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks, EnginePort, PortRequests
from holdfast.server.ipc.engines import ReplicaStatus, Restart, not_ready
from holdfast.server.ipc.pass_record import PassRecord, create_pass_record
from holdfast.server.telemetry.logs import current_model

_log = logging.getLogger("holdfast.server")

COMMAND = (sys.executable, "-m", "holdfast.server.ipc.host_main")
MAX_DEATHS = 5
WITHIN_SECONDS = 120.0
FIRST_PAUSE = 0.2
STEPS_UNTIL_HANG = 20  # times the longest step
_LOADS_UNTIL_HANG = 20  # times the longest load
_POLL_SECONDS = 5.0
_EXIT_SECONDS = 5.0
_RETRY_SECONDS = 5  # while the model is loaded for the first time


Requests = TypeVar("Requests", bound=PortRequests)


class ProcessPort(EnginePort):
    """One process, from start to end: the connection to it, and what it left in memory."""

    is_only = True
    _process: asyncio.subprocess.Process
    _read_task: asyncio.Task[None]
    _pass_record: PassRecord | None = None

    async def start(self, command: Sequence[str], config: EngineConfig, log: tuple[str, str]) -> None:
        """Start the process and send it the configuration. Does not wait until it is ready."""
        record = create_pass_record()
        try:
            self._pass_record = PassRecord(record)
            await self._start_process(
                command, m.Start(config, *log, pass_record=record, model=current_model.get())
            )
        except BaseException:
            self._close_record()
            raise
        finally:
            os.close(record)

    async def _start_process(self, command: Sequence[str], start: m.Start) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                inherited = theirs.fileno(), start.pass_record
                self._process = await asyncio.create_subprocess_exec(
                    *command, str(theirs.fileno()), pass_fds=inherited, stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # the process, if it was started, ends with it
            raise
        self._send(start)
        self._read_task = asyncio.create_task(self._read(reader))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running_ids(self) -> frozenset[int]:
        return frozenset() if self._pass_record is None else self._pass_record.running_ids

    @property
    def longest_step(self) -> float:
        return 0.0 if self._pass_record is None else self._pass_record.longest_step

    async def stop(self) -> None:
        """End the process: ask it to end, then kill it. One that is still loading is killed at once."""
        if self.ready is None:
            self.kill()
        self._send(m.Stop())
        await self._reap()
        await self.wait_ended()

    def kill(self) -> None:
        self.is_killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait_ended(self) -> None:
        """Wait until the process has ended and everything it sent was handled."""
        await asyncio.wait((self._read_task,))

    @property
    def exit_status(self) -> str:
        """Say how the process ended, for the log."""
        code = self._process.returncode
        return f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"

    async def _end(self) -> None:
        self._close_record()
        await self._reap()

    async def _reap(self) -> None:
        """Wait for the process to end. Kill it if that takes long: nothing can reach it any more."""
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def _close_record(self) -> None:
        if self._pass_record is not None:
            self._pass_record.close()
            self._pass_record = None


class EngineProcess(Generic[Requests]):
    """Holds the port of the current process, and the requests that it computes.

    log is (format, level) of its log. hang_timeout 0: a process that hangs is not killed.
    """

    replicas: Sequence[ReplicaStatus] = ()

    def __init__(
        self,
        config: EngineConfig,
        callbacks: EngineCallbacks,
        log: tuple[str, str] = ("text", "info"),
        command: Sequence[str] = COMMAND,
        *,
        requests: Requests,
        hang_timeout: float = 60.0,
    ) -> None:
        self.config = config
        self.requests = requests
        self.num_restarts = 0
        self.load_seconds: float | None = None  # of the last start
        self._callbacks = callbacks
        self._log_settings = log
        self._command = command
        self._hang_timeout = hang_timeout
        self._port: ProcessPort | None = None
        self._restart: Restart | None = None
        self._started = 0.0
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._hung = False  # why the current process is killed
        self._stopping = False
        self._tracing = False

    @property
    def port(self) -> ProcessPort:
        """Return the port of a process that is ready. Raises `NotReady` while there is none."""
        port = self._port
        if port is None or not self.is_ready:
            raise not_ready(self.retry_after)
        return port

    @property
    def is_ready(self) -> bool:
        port = self._port
        return port is not None and port.ready is not None and not port.closed.is_set() and not self._stopping

    @property
    def restart(self) -> Restart | None:
        """Return the restart in progress. It begins when the process is gone, also before its exit status is
        known."""
        port = self._port
        if self._restart is None and port is not None and port.ready is not None and port.closed.is_set():
            return Restart("ended", time.monotonic())
        return self._restart

    @property
    def is_stuck(self) -> bool:
        port = self._port
        return port is not None and port.unanswered_seconds > self._step_limit(port)

    @property
    def retry_after(self) -> int:
        """Estimate the seconds until the process is ready, by the time that the last start took."""
        if self.load_seconds is None:
            return _RETRY_SECONDS
        is_loading = self._port is not None and not self._port.closed.is_set()  # else it died just now
        elapsed = time.monotonic() - self._started if is_loading else 0.0
        return max(1, math.ceil(self.load_seconds - elapsed))

    def set_tracing(self, on: bool) -> None:
        self._tracing = on
        if self.is_ready:
            self.port.set_tracing(on)

    async def refresh_status(self) -> None:
        await self.port.status()

    async def run(self) -> None:
        """Run until stopped. Raises `ConfigError` or `EngineStopped` if starting again makes no sense."""
        watching = asyncio.create_task(self._watch())
        try:
            while not self._stopping:
                await self._run_process()
        except (ConfigError, EngineStopped) as error:
            self.requests.close(error)
            raise
        finally:
            watching.cancel()

    async def _run_process(self) -> None:
        self._started, self._hung = time.monotonic(), False
        port = ProcessPort(self._callbacks, self.requests, lambda: self._on_change(port))
        try:
            await port.start(self._command, self.config, self._log_settings)
        except OSError as error:  # out of memory or descriptors: may work later
            await self._on_engine_death(f"could not be started: {error.strerror or error}")
            return
        self._port = port
        await port.settled.wait()
        if port.startup_error is not None:
            raise ConfigError(port.startup_error)
        if port.ready is not None:
            self.load_seconds = time.monotonic() - self._started
            self._restart = None
            self._callbacks.on_ready()
            if self._tracing:
                port.set_tracing(True)
        await port.closed.wait()
        await port.wait_ended()
        if not self._stopping:
            await self._on_engine_death("hung and was killed" if self._hung else f"died ({port.exit_status})")

    def _on_change(self, port: ProcessPort) -> None:
        self.requests.set_ports([port], port.fingerprint, port.ready)

    async def stop(self) -> None:
        self._end()
        if self._port is not None:
            await self._port.stop()

    def kill(self) -> None:
        self._end()
        if self._port is not None:
            self._port.kill()

    def _end(self) -> None:
        self._stopping = True
        self.requests.close(EngineStopped("the engine is shut down"))

    async def _watch(self) -> None:
        """Request the engine's status every few seconds, and kill a process that does not answer."""
        interval = min(_POLL_SECONDS, self._hang_timeout / 4 or _POLL_SECONDS)
        while True:
            await asyncio.sleep(interval)
            port = self._port
            if port is None or port.closed.is_set() or port.is_killed:
                continue
            if port.ready is not None:
                port.poll()
            if self._hang_timeout and self._is_hanging(port):
                _log.error("the engine process hangs; it is killed")
                self._hung = True
                self._callbacks.on_hang()
                port.kill()

    def _is_hanging(self, port: ProcessPort) -> bool:
        if port.ready is not None:
            return port.unanswered_seconds > self._step_limit(port)
        if self.load_seconds is None:
            return False  # nobody knows how long the first load takes
        limit = max(self._hang_timeout, _LOADS_UNTIL_HANG * self.load_seconds)
        return time.monotonic() - self._started > limit

    def _step_limit(self, port: ProcessPort) -> float:
        return max(self._hang_timeout or 60.0, STEPS_UNTIL_HANG * port.longest_step)

    async def _on_engine_death(self, how: str) -> None:
        """Wait before the next start, longer each time. Raises if the process died too often."""
        now = time.monotonic()
        if self.requests.has_progressed:
            self._deaths.clear()
            self.requests.has_progressed = False
        self._deaths.append(now)
        recent = [death for death in self._deaths if now - death < WITHIN_SECONDS]
        if len(recent) >= MAX_DEATHS:
            raise EngineStopped(
                f"the engine process {how}, the {len(recent)}th time within {WITHIN_SECONDS:.0f} seconds"
            )
        self._restart = Restart(how, now)
        self.num_restarts += 1
        num_waiting = self.requests.num_live
        self._callbacks.on_death(how, num_waiting)
        pause = FIRST_PAUSE * (2 ** (len(recent) - 1) - 1)
        _log.error(
            "the engine process %s; %d requests wait; starting it again in %.1f seconds",
            how,
            num_waiting,
            pause,
        )
        await asyncio.sleep(pause)
