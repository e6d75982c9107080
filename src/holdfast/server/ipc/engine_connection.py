"""A connection to one engine, as the frontend sees it: messages there, outputs and reports back.

The engine is a process on this machine (`engine_link`) or a replica on another (`holdfast.ray`).
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from holdfast.core.framing import ConnectionLost
from holdfast.engine.status import CertificateState, EngineStatus
from holdfast.engine.tracer import StepTrace
from holdfast.errors import EngineStopped, HoldfastError, RequestError, make_error
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.request_table import NO_CALLBACKS, ResumeCallbacks


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class EngineCallbacks:
    """Called with what the engine process reports besides the outputs of requests."""

    on_progress: Callable[[str, int, int], None] = _ignore  # (stage, done, total), while it starts
    on_ready: Callable[["EngineConnection"], None] = _ignore
    on_status: Callable[["EngineConnection", EngineStatus], None] = _ignore
    on_trace: Callable[["EngineConnection", StepTrace], None] = _ignore
    on_death: Callable[[str, int], None] = _ignore  # (how, requests that continue), before it is restarted
    on_hang: Callable[[], None] = _ignore  # before it is killed
    on_report: Callable[[m.CertificateChanged | m.Revoked], None] = _ignore  # its certificate changed
    on_replicas: Callable[[], None] = _ignore  # a replica of a pool came or left
    resume: ResumeCallbacks = NO_CALLBACKS


class OutputReceiver(Protocol):
    """Gets what the engine sends about requests."""

    def attach(self, link: Any, /) -> None: ...

    def detach(self, link: Any, /) -> None: ...

    def set_fingerprint(self, fingerprint: m.FingerprintReady, /) -> None: ...

    def accept(self, request_id: int, /) -> None: ...

    def refuse(self, request_id: int, error: HoldfastError, /) -> None: ...

    def step(self, message: m.StepOutput, /) -> None: ...


class EngineConnection(ABC):
    """An engine that computes, until the event `closed` is set: then nothing can come from it any more.

    `ready` is set once it accepts requests. replica is its id in a pool of replicas.
    """

    replica = ""

    def __init__(self, callbacks: EngineCallbacks, requests: OutputReceiver) -> None:
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
        self._status_requests: deque[tuple[float, asyncio.Future[EngineStatus]]] = deque()

    _writer: asyncio.StreamWriter

    def submit(self, message: m.Submit) -> None:
        """Send a request. Raises `EngineStopped` if the process is not ready."""
        if self.closed.is_set() or self.ready is None:
            raise EngineStopped("the engine is not running")
        self._send(message)

    def forward(self, frame: bytes) -> None:
        """Send a request that is encoded. Raises `EngineStopped` if the process is not ready."""
        if self.closed.is_set() or self.ready is None:
            raise EngineStopped("the engine is not running")
        self._writer.write(frame)

    def abort(self, request_id: int) -> None:
        """End a request. What still comes for it is ignored."""
        self._send(m.Abort(request_id))

    @property
    @abstractmethod
    def running_ids(self) -> frozenset[int]:
        """The ids of the requests that ran in the last pass."""

    @abstractmethod
    def kill(self) -> None:
        """End the connection at once, and the engine where this side owns it."""

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

    def _send(self, message: m.ToEngine) -> None:
        if not self._writer.is_closing():
            self._writer.write(m.encode([message]))

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        """Handle what arrives until the stream ends."""
        decoder = m.decoder_from_engine()
        try:
            while True:
                self._handle(await decoder.read_async(reader))
        except ConnectionLost:
            pass

    def _on_closed(self) -> None:
        """Nothing will arrive any more. Tell everything that waits now."""
        self.closed.set()
        self.settled.set()
        self._has_fingerprint.set()
        self.requests.detach(self)
        for _, answer in self._status_requests:
            if not answer.done():
                answer.set_exception(EngineStopped("the engine stopped"))

    def _handle(self, message: m.FromEngine) -> None:
        if isinstance(message, m.StepOutput):
            self.requests.step(message)
        elif isinstance(message, m.Accepted):
            self.requests.accept(message.request_id)
        elif isinstance(message, m.Refused):
            self.requests.refuse(message.request_id, _refusal(message))
        elif isinstance(message, m.StepTraced):
            self._callbacks.on_trace(self, message.trace)
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
            self._callbacks.on_report(message)
        elif isinstance(message, m.Revoked):
            self.revocation = message.reason
            self._callbacks.on_report(message)

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
        self._callbacks.on_status(self, status)
        _, answer = self._status_requests.popleft()
        if not answer.done():
            answer.set_result(status)


def _refusal(message: m.Refused) -> HoldfastError:
    """The error the engine process raised.

    One that is not the request's own fault becomes an internal error.
    """
    error = make_error(message.code, message.message)
    return error if isinstance(error, RequestError) else HoldfastError(message.message)
