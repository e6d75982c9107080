"""A connection to one engine: messages there, outputs and reports back.

The engine is a process on this machine (`engine_process`) or a replica on another (`holdfast.ray`). A port
belongs to one process, or to one TCP connection, and ends with it: the process that is started next has
another port. So nothing that still arrives from a dead engine finds a receiver.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.framing import ConnectionLost, read_frame_async
from holdfast.engine.status import EngineStatus
from holdfast.engine.tracer import StepTrace
from holdfast.errors import EngineStopped, HoldfastError, RequestError, make_error
from holdfast.server.ipc import messages as m

if TYPE_CHECKING:
    from holdfast.server.ipc.response_stream import ResponseStream

_log = logging.getLogger("holdfast.server")


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class EngineCallbacks:
    """Called with what engines report besides the outputs of requests, and with what happens to requests
    whose engine died. source is the id of a port."""

    on_progress: Callable[[str, int, int], None] = _ignore  # (stage, done, total), while it starts
    on_ready: Callable[[], None] = _ignore
    on_status: Callable[[EngineStatus, str], None] = _ignore  # (status, source)
    on_trace: Callable[[StepTrace, str], None] = _ignore  # (trace, source)
    on_death: Callable[[str, int], None] = _ignore  # (how, requests that continue), before it is restarted
    on_hang: Callable[[], None] = _ignore  # before it is killed
    on_replicas: Callable[[], None] = _ignore  # a replica of a pool came or left
    on_resume: Callable[[bool], None] = _ignore  # (deterministic): a request is submitted again
    on_continue: Callable[[float], None] = _ignore  # (seconds since the death): its next output
    on_crash: Callable[[], None] = _ignore  # it ends with `EngineCrashed`, or its failed pass


NO_CALLBACKS = EngineCallbacks()


class PortRequests(Protocol):
    """The requests of an engine: a `RequestTable`, or the host of a replica, which has those of frontends.

    resumes: they outlive the engine. ready: what engines said last. has_progressed: since the last death.
    """

    resumes: bool
    ready: m.Ready | None
    has_progressed: bool

    @property
    def num_live(self) -> int: ...

    def accept(self, port: Any, request_id: int, /) -> None: ...

    def refuse(self, port: Any, request_id: int, error: HoldfastError, /) -> None: ...

    def step(self, port: Any, message: m.StepOutput, /) -> None: ...

    def lose(self, port: Any, /) -> None: ...

    def set_ports(
        self, ports: "Iterable[EnginePort]", fingerprint: m.FingerprintReady | None, ready: m.Ready | None, /
    ) -> None: ...

    def close(self, error: HoldfastError, /) -> None: ...


class EnginePort(ABC):
    """An engine that computes, until the event `closed` is set: then nothing can come from it any more.

    `ready` is set once it accepts requests, `fingerprint` once its weights are hashed; `on_change` is
    called then. is_only: no other engine can compute its requests; `kill` has it restarted. streams: the
    requests that it has, kept by the `RequestTable`.
    """

    is_only = False

    def __init__(
        self,
        callbacks: EngineCallbacks,
        requests: PortRequests,
        on_change: Callable[[], None] = _ignore,
        *,
        id: str = "",
    ) -> None:
        self.id = id  # of a replica in a pool
        self.ready: m.Ready | None = None
        self.startup_error: str | None = None
        self.fingerprint: m.FingerprintReady | None = None
        self.closed = asyncio.Event()
        self.is_killed = False  # by `kill`
        self.settled = asyncio.Event()  # ready, failed to start, or closed
        self.streams: dict[int, ResponseStream] = {}
        self.num_submitted = 0
        self.requests = requests
        self._callbacks = callbacks
        self._on_change = on_change
        self._status: asyncio.Future[EngineStatus | None] | None = None  # requested; None: closed before
        self._status_asked = 0.0  # when

    _writer: asyncio.StreamWriter

    def submit(self, request_id: int, frame: bytes) -> None:
        """Send a request, which is encoded. The port must be ready and open."""
        self.num_submitted += 1
        if not self._writer.is_closing():
            self._writer.write(frame)

    def abort(self, request_id: int) -> None:
        """End a request. What still comes for it is ignored."""
        self._send(m.Abort(request_id))

    @property
    @abstractmethod
    def running_ids(self) -> frozenset[int] | None:
        """Return the ids of the requests that ran in the last pass; None if that is not known."""

    @abstractmethod
    def kill(self) -> None:
        """End the connection at once, and the engine where this side owns it."""

    def set_tracing(self, on: bool) -> None:
        self._send(m.SetTracing(on))

    def poll(self) -> None:
        """Request the engine's numbers for the callback, unless an answer is due already."""
        if self._status is None and not self.closed.is_set():
            self._status = asyncio.get_running_loop().create_future()
            self._status_asked = time.monotonic()
            self._send(m.GetStatus())

    async def status(self) -> EngineStatus:
        """Return the engine's numbers after its current step. Raises `EngineStopped` if it ends before.

        All that was sent before these numbers is handled before them, so an answer that is due serves.
        """
        self.poll()
        status = None if self._status is None else await asyncio.shield(self._status)
        if status is None:
            raise EngineStopped("the engine stopped")
        return status

    @property
    def unanswered_seconds(self) -> float:
        """Return how long the status request has waited."""
        return 0.0 if self._status is None else time.monotonic() - self._status_asked

    def _send(self, message: m.ToEngine) -> None:
        if not self._writer.is_closing():
            self._writer.write(m.encode([message]))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle what arrives until the stream ends."""
        try:
            with suppress(ConnectionLost):
                while True:
                    self._handle(m.decode_from_engine(await read_frame_async(reader)))
        except Exception:
            _log.exception(
                "%s sent an invalid message", f"replica {self.id}" if self.id else "the engine process"
            )
            self.kill()
        finally:
            self._writer.close()
            self._on_closed()  # tells everything that waits, even if `_end` takes time
            await self._end()

    @abstractmethod
    async def _end(self) -> None:
        """Free what belonged to the connection, once nothing can come from it any more."""

    def _on_closed(self) -> None:
        """Tell everything that waits: nothing will arrive any more."""
        self.closed.set()
        self.settled.set()
        self.requests.lose(self)
        self._answer_status(None)

    def _handle(self, message: m.FromEngine) -> None:
        if isinstance(message, m.StepOutput):
            self.requests.step(self, message)
        elif isinstance(message, m.Accepted):
            self.requests.accept(self, message.request_id)
        elif isinstance(message, m.Refused):
            self.requests.refuse(self, message.request_id, _refusal(message))
        elif isinstance(message, m.StepTraced):
            self._callbacks.on_trace(message.trace, self.id)
        elif isinstance(message, m.StatusReport):
            if self._status is None:
                raise ValueError("a status that was not requested")
            self._callbacks.on_status(message.status, self.id)
            self._answer_status(message.status)
        elif isinstance(message, m.Progress):
            self._callbacks.on_progress(message.stage, message.done, message.total)
        elif isinstance(message, m.StartupFailed):
            self.startup_error = message.reason
            self.settled.set()
        else:
            self._change(message)

    def _change(self, message: m.FromEngine) -> None:
        """Keep what the engine says of itself."""
        if isinstance(message, m.Ready):
            self.ready = message
            self.settled.set()
        elif isinstance(message, m.FingerprintReady):
            self.fingerprint = message
        self._on_change()

    def _answer_status(self, status: EngineStatus | None) -> None:
        answer, self._status = self._status, None
        if answer is not None:
            answer.set_result(status)


def _refusal(message: m.Refused) -> HoldfastError:
    """Return the error that the engine raised.

    One that is not the request's own fault becomes an internal error.
    """
    error = make_error(message.code, message.message)
    return error if isinstance(error, RequestError) else HoldfastError(message.message)
