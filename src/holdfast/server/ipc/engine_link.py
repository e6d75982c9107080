"""One engine process, from start to end, as the frontend sees it."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.framing import ConnectionLost
from holdfast.engine.config import EngineConfig
from holdfast.engine.status import CertificateState, EngineStatus
from holdfast.engine.tracer import StepTrace
from holdfast.errors import EngineStopped, HoldfastError, RequestError, make_error
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.live_requests import NO_CALLBACKS, LiveRequests, ResumeCallbacks
from holdfast.server.ipc.pass_record import PassRecord, create_pass_record

_log = logging.getLogger("holdfast.server")
_EXIT_SECONDS = 5.0
COMMAND = (sys.executable, "-m", "holdfast.server.ipc.engine_process")


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class EngineCallbacks:
    """Called with what the engine process reports besides the outputs of requests."""

    on_progress: Callable[[str, int, int], None] = _ignore  # (stage, done, total), while it starts
    on_ready: Callable[["EngineLink"], None] = _ignore
    on_status: Callable[[EngineStatus], None] = _ignore
    on_trace: Callable[[StepTrace], None] = _ignore
    on_death: Callable[[str, int], None] = _ignore  # (how, requests that continue), before it is restarted
    on_hang: Callable[[], None] = _ignore  # before it is killed
    resume: ResumeCallbacks = NO_CALLBACKS


class EngineLink:
    """A running engine process.

    `ready` is set once it accepts requests. The event `closed` is set when nothing can come from it
    any more.
    """

    def __init__(self, callbacks: EngineCallbacks, requests: LiveRequests) -> None:
        self.ready: m.Ready | None = None
        self.startup_error: str | None = None
        self.fingerprint: m.FingerprintReady | None = None
        self.revocation: str | None = None
        self.closed = asyncio.Event()
        self.is_killed = False  # by `kill`
        self.settled = asyncio.Event()  # ready, failed to start, or closed
        self._has_fingerprint = asyncio.Event()  # or never will
        self._callbacks = callbacks
        self.requests = requests
        self._pass_record: PassRecord | None = None
        self._status_requests: deque[tuple[float, asyncio.Future[EngineStatus]]] = deque()

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        callbacks: EngineCallbacks,
        log: tuple[str, str],
        command: Sequence[str] = COMMAND,
        requests: LiveRequests | None = None,
    ) -> "EngineLink":
        """Start the process and send it the configuration. Does not wait until it is ready.

        log is (format, level). requests get the outputs; those that wait are submitted when the
        process is ready.
        """
        link = cls(callbacks, requests or LiveRequests(resumes=False))
        record = create_pass_record()
        try:
            link._pass_record = PassRecord(record)
            await link._start_process(command, m.Start(config, *log, pass_record=record))
        except BaseException:
            link._close_record()
            raise
        finally:
            os.close(record)
        return link

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

    def _close_record(self) -> None:
        if self._pass_record is not None:
            self._pass_record.close()
            self._pass_record = None

    _writer: asyncio.StreamWriter
    _process: asyncio.subprocess.Process
    _read_task: asyncio.Task[None]

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, message: m.Submit) -> None:
        """Send a request. Raises `EngineStopped` if the process is not ready."""
        if self.closed.is_set() or self.ready is None:
            raise EngineStopped("the engine is not running")
        self._send(message)

    def abort(self, request_id: int) -> None:
        """End a request. What still comes for it is ignored."""
        self._send(m.Abort(request_id))

    @property
    def running_ids(self) -> frozenset[int]:
        """The ids of the requests that ran in the last pass."""
        return frozenset() if self._pass_record is None else self._pass_record.running_ids

    @property
    def longest_step(self) -> float:
        """Seconds of the longest step so far."""
        return 0.0 if self._pass_record is None else self._pass_record.longest_step

    def set_tracing(self, on: bool) -> None:
        """Have a trace of every step sent, or not."""
        self._send(m.SetTracing(on))

    def poll(self) -> None:
        """Request the engine's numbers for the callback, unless an answer is due already."""
        if not self._status_requests and not self.closed.is_set():
            asking = self._request_status()
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def status(self) -> EngineStatus:
        """The engine's numbers after its current step. Raises `EngineStopped` if it ends before."""
        if self.closed.is_set():
            raise EngineStopped("the engine stopped")
        return await self._request_status()

    def _request_status(self) -> "asyncio.Future[EngineStatus]":
        answer: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()
        self._status_requests.append((time.monotonic(), answer))
        self._send(m.GetStatus())
        return answer

    @property
    def unanswered_seconds(self) -> float:
        """How long the oldest status request has waited."""
        return time.monotonic() - self._status_requests[0][0] if self._status_requests else 0.0

    async def wait_for_fingerprint(self) -> m.FingerprintReady:
        """The fingerprint, once the weights are hashed."""
        await self._has_fingerprint.wait()
        if self.fingerprint is None:
            raise EngineStopped("the engine stopped")
        return self.fingerprint

    async def stop(self) -> None:
        """End the process: ask it to end, then kill it.

        One that is still loading is killed at once.
        """
        if self.ready is None:
            self.kill()
        self._send(m.Stop())
        await self._reap()
        await self.wait_ended()

    def kill(self) -> None:
        """Kill the process."""
        self.is_killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait_ended(self) -> None:
        """Wait until the process has ended and everything it sent was handled."""
        await asyncio.wait((self._read_task,))

    @property
    def exit_status(self) -> str:
        """How the process ended, for the log."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"signal {-code}"

    def _send(self, message: m.ToEngine) -> None:
        if not self._writer.is_closing():
            self._writer.write(m.encode([message]))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = m.decoder_from_engine()
        try:
            while True:
                self._handle(await decoder.read_async(reader))
        except ConnectionLost:
            pass
        except Exception:
            _log.exception("the engine process sent an invalid message")
            self.kill()
        finally:
            self._writer.close()
            self._on_closed()
            await self._reap()

    async def _reap(self) -> None:
        """Wait for the process to end. Kill it if that takes long: nothing can reach it any more."""
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def _on_closed(self) -> None:
        """Nothing will arrive any more.

        Tell everything that waits now, even if the process takes time to end.
        """
        self.closed.set()
        self.settled.set()
        self._has_fingerprint.set()
        self.requests.detach(self)
        self._close_record()
        for _, answer in self._status_requests:
            if not answer.done():
                answer.set_exception(EngineStopped("the engine stopped"))

    def _handle(self, message: m.FromEngine) -> None:
        if isinstance(message, m.StepOutput):
            for started in message.started:
                self.requests.start(started.request_id, started.queue_seconds)
            for output in message.outputs:
                self.requests.deliver(output)
        elif isinstance(message, m.Accepted):
            self.requests.accept(message.request_id, message.seed)
        elif isinstance(message, m.Refused):
            self.requests.refuse(message.request_id, _refusal(message))
        elif isinstance(message, m.StepTraced):
            self._callbacks.on_trace(message.trace)
        elif isinstance(message, m.StatusReport):
            self._answer_status(message.status)
        elif isinstance(message, m.Progress):
            self._callbacks.on_progress(message.stage, message.done, message.total)
        elif isinstance(message, m.Ready):
            self.ready = message
            self.settled.set()
            self.requests.attach(self)
        elif isinstance(message, m.StartupFailed):
            self.startup_error = message.reason
            self.settled.set()
        elif isinstance(message, m.FingerprintReady):
            self.fingerprint = message
            self._has_fingerprint.set()
            self.requests.set_fingerprint(message)
        elif isinstance(message, m.CertificateChanged):
            self._change_certificate(message)
        else:
            self.revocation = message.reason

    @property
    def certificate_state(self) -> CertificateState:
        if self.revocation is not None or self.ready is None:
            return CertificateState("none" if self.ready is None else "revoked")
        return self.ready.certificate_state

    def _change_certificate(self, message: m.CertificateChanged) -> None:
        assert self.ready is not None
        self.ready = msgspec.structs.replace(
            self.ready,
            certificate_state=message.state,
            refusal=message.refusal,
            certificate=message.certificate,
        )

    def _answer_status(self, status: EngineStatus) -> None:
        self._callbacks.on_status(status)
        _, answer = self._status_requests.popleft()
        if not answer.done():
            answer.set_result(status)


def _refusal(message: m.Refused) -> HoldfastError:
    """The error the engine process raised.

    One that is not the request's own fault becomes an internal error.
    """
    error = make_error(message.code, message.message)
    return error if isinstance(error, RequestError) else HoldfastError(message.message)
