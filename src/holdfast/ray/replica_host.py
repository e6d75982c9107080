"""One engine replica: an engine process, and the frontends that are connected to it.

    frontend ── requests over TCP ──> ReplicaHost ──> engine process
    frontend <─ outputs over TCP ──── one message a step <── engine process
    frontend ── call through Ray ───> ReplicaHost.wait_for_end

The call of a request begins when it was accepted and is open until it has ended: so Ray's queue lengths,
autoscaling and draining see it. Knows nothing of Ray itself.
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.framing import ConnectionLost, FrameTooLong, pack_frame, read_frame_async
from holdfast.core.results import RequestOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.tracer import StepTrace
from holdfast.errors import EngineStopped, HoldfastError, NotReady, PassFailed
from holdfast.ray.messages import Hello, RoutedRequest, SubmitHead, frontend_of
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks, EnginePort
from holdfast.server.ipc.engine_process import COMMAND, EngineProcess, ProcessPort

_log = logging.getLogger("holdfast.engine")
_HELLO_SECONDS = 10.0
_MAX_HELLO_BYTES = 4096
_MAX_UNSENT_BYTES = 256 << 20  # to one frontend that does not read
_MAX_FAILED_PASSES = 3  # in a row: then the device is broken
_DRAIN_POLL = 0.05

_ToReplica = SubmitHead | m.Abort | m.SetTracing | m.GetStatus
_decode_hello = msgspec.msgpack.Decoder(Hello)
_decode = msgspec.msgpack.Decoder(_ToReplica)


class _FrontendConnection:
    """One connected frontend. Its requests go to one engine process: with another one it connects again."""

    def __init__(self, hello: Hello, writer: asyncio.StreamWriter, port: EnginePort) -> None:
        self.number = hello.frontend
        self.token = hello.token
        self.port = port
        self.is_tracing = False
        self._writer = writer

    def send(self, *messages: m.FromEngine) -> None:
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            _log.error("frontend %d does not read its outputs; it is disconnected", self.number)
            self._writer.transport.abort()
        elif not self._writer.is_closing():
            self._writer.write(m.encode(messages))

    def close(self) -> None:
        self._writer.close()


def _own_part(message: m.StepOutput, number: int) -> m.StepOutput:
    return m.StepOutput(
        tuple(one for one in message.started if frontend_of(one.request_id) == number),
        tuple(one for one in message.outputs if frontend_of(one.request_id) == number),
    )


class ReplicaHost:
    """Made in the event loop that it runs in.

    It holds the requests of its `EngineProcess`, as a `RequestTable` does in a frontend. What the engine says
    of them goes to the frontends that sent them. A frontend has what its clients were sent, and resumes at
    another replica: so nothing outlives the process here.
    """

    resumes = False

    def __init__(
        self,
        config: EngineConfig,
        *,
        log: tuple[str, str] = ("text", "info"),
        command: Sequence[str] = COMMAND,
        hang_timeout: float = 60.0,
    ) -> None:
        self.secret = secrets.token_hex(16)
        self.address: tuple[str, int] | None = None
        self.ready: m.Ready | None = None
        self.has_progressed = False
        self._frontends: dict[int, _FrontendConnection] = {}  # by number
        self._ended: dict[int, asyncio.Event] = {}  # by request id, of each request that has not ended
        self._num_failed_passes = 0  # in a row
        self._died_with: frozenset[int] = frozenset()  # the requests of the last pass of a dead process
        callbacks = EngineCallbacks(on_trace=self._on_trace, on_death=self._on_engine_death)
        self.process = EngineProcess(
            config, callbacks, log, command, requests=self, hang_timeout=hang_timeout
        )
        self._running: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def start(self, host: str) -> None:
        """Start the engine process and wait until it is ready and has its fingerprint. Raises
        `ConfigError` or `EngineStopped`."""
        self._running = asyncio.create_task(self.process.run())
        while not (self.process.is_ready and self.process.port.fingerprint is not None):
            await asyncio.wait((self._running,), timeout=0.05)
            if self._running.done():
                self._running.result()
        self._server = await asyncio.start_server(self._serve_frontend, host, 0)
        self.address = self._server.sockets[0].getsockname()[:2]

    def check(self) -> None:
        """Raise if no engine process will come any more."""
        if self._running is None or self._running.done():
            error = None if self._running is None or self._running.cancelled() else self._running.exception()
            raise EngineStopped(f"the engine is not running{f': {error}' if error else ''}")

    async def wait_for_end(self, request: RoutedRequest) -> None:
        """Return when the request has ended, or at once if it is not here."""
        ended = self._ended.get(request.request_id)
        if ended is not None:
            await ended.wait()

    async def drain(self) -> None:
        """Wait until no request runs. Ray waits for calls itself; a request's call may be late."""
        while self.num_live:
            await asyncio.sleep(_DRAIN_POLL)

    async def stop(self) -> None:
        """End the engine process and every connection."""
        if self._server is not None:
            self._server.close()
        for frontend in tuple(self._frontends.values()):
            frontend.send(m.ReplicaStopping())
            frontend.close()
        await self.process.stop()
        if self._running is not None:
            await asyncio.wait((self._running,))

    # Frontends

    async def _serve_frontend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frontend: _FrontendConnection | None = None
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = _decode_hello.decode(await read_frame_async(reader, _MAX_HELLO_BYTES))
            if not hmac.compare_digest(hello.secret.encode(), self.secret.encode()):
                _log.warning("a connection without the replica's secret was refused")
                return
            frontend = self._open(hello, writer)
            while frontend is not None:
                self._handle(frontend, await read_frame_async(reader))
        except (ConnectionLost, FrameTooLong, TimeoutError, msgspec.DecodeError, NotReady):
            pass
        finally:
            writer.close()
            if frontend is not None:
                self._on_frontend_lost(frontend)

    def _open(self, hello: Hello, writer: asyncio.StreamWriter) -> _FrontendConnection | None:
        """Tell a frontend the engine's state. None: the engine hashes its weights, or another frontend has
        the number. Raises `NotReady` while the engine is restarted."""
        port = self.process.port
        if port.ready is None or port.fingerprint is None:
            return None
        before = self._frontends.get(hello.frontend)
        if before is not None and before.token != hello.token:
            _log.error("two frontends have the number %d; the second one is refused", hello.frontend)
            return None
        if before is not None:  # its connection broke, and this side has not seen it
            before.close()
            self._on_frontend_lost(before)
        frontend = _FrontendConnection(hello, writer, port)
        frontend.send(port.fingerprint, port.ready)  # `Ready` last: then the frontend knows both
        self._frontends[frontend.number] = frontend
        return frontend

    def _handle(self, frontend: _FrontendConnection, payload: bytes) -> None:
        message = _decode.decode(payload)
        if isinstance(message, SubmitHead | m.Abort):
            request_id = message.request.request_id if isinstance(message, SubmitHead) else message.request_id
            if frontend_of(request_id) != frontend.number:
                raise msgspec.ValidationError(f"frontend {frontend.number} sent the request of another one")
            if frontend.port.closed.is_set():
                return  # this connection is about to be closed
            if isinstance(message, SubmitHead):
                self._ended[request_id] = asyncio.Event()
                frontend.port.submit(request_id, pack_frame(payload))
            else:
                frontend.port.abort(request_id)
                self._end(request_id)
        elif isinstance(message, m.SetTracing):
            frontend.is_tracing = message.on
            self._set_tracing()
        else:
            task = asyncio.create_task(self._send_status(frontend))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    def _set_tracing(self) -> None:
        """Trace while a frontend wants it. A new tracer's first trace is complete: all get it."""
        self.process.set_tracing(any(one.is_tracing for one in self._frontends.values()))

    async def _send_status(self, frontend: _FrontendConnection) -> None:
        with contextlib.suppress(EngineStopped, NotReady):  # then the connection is closed
            frontend.send(m.StatusReport(await self.process.port.status()))

    def _on_frontend_lost(self, frontend: _FrontendConnection) -> None:
        """Abort the requests of a frontend that left."""
        if self._frontends.get(frontend.number) is not frontend:
            return  # it has connected again
        del self._frontends[frontend.number]
        for request_id in tuple(self._ended):
            if frontend_of(request_id) == frontend.number:
                if not frontend.port.closed.is_set():
                    frontend.port.abort(request_id)
                self._end(request_id)
        if frontend.is_tracing and self.process.is_ready:
            self._set_tracing()

    # Called by the engine process

    @property
    def num_live(self) -> int:
        return len(self._ended)

    def close(self, error: HoldfastError) -> None:
        """End everything: no engine process will come any more."""
        self._end_all()
        for frontend in tuple(self._frontends.values()):
            frontend.close()

    def set_ports(
        self, ports: Iterable[EnginePort], fingerprint: m.FingerprintReady | None, ready: m.Ready | None
    ) -> None:
        """Tell the frontends that the certificate changed. They get the fingerprint when they connect."""
        if ready is not None and ready is not self.ready:
            self.ready = ready
            for frontend in self._frontends.values():
                frontend.send(ready)

    def lose(self, port: ProcessPort) -> None:
        self._died_with, self._num_failed_passes = port.running_ids, 0
        self._end_all()

    def accept(self, port: EnginePort, request_id: int) -> None:
        self._tell(request_id, m.Accepted(request_id))

    def refuse(self, port: EnginePort, request_id: int, error: HoldfastError) -> None:
        self._tell(request_id, m.Refused(request_id, error.code, str(error)))
        self._end(request_id)

    def step(self, port: EnginePort, message: m.StepOutput) -> None:
        self.has_progressed = True
        numbers = {frontend_of(one.request_id) for one in message.started}
        numbers |= {frontend_of(one.request_id) for one in message.outputs}
        for number in numbers:
            frontend = self._frontends.get(number)
            if frontend is not None:
                frontend.send(message if len(numbers) == 1 else _own_part(message, number))
        for output in message.outputs:
            if output.result is not None:
                self._count(port, output)
                self._end(output.request_id)

    def _end(self, request_id: int) -> None:
        ended = self._ended.pop(request_id, None)
        if ended is not None:
            ended.set()

    def _end_all(self) -> None:
        for request_id in tuple(self._ended):
            self._end(request_id)

    def _tell(self, request_id: int, message: m.FromEngine) -> None:
        frontend = self._frontends.get(frontend_of(request_id))
        if frontend is not None:
            frontend.send(message)

    def _count(self, port: EnginePort, output: RequestOutput) -> None:
        """Count the passes that raise, one after the other. After some the engine is restarted."""
        assert output.result is not None
        failed = output.result.error_code == PassFailed.code
        self._num_failed_passes = self._num_failed_passes + 1 if failed else 0
        if self._num_failed_passes >= _MAX_FAILED_PASSES and not port.is_killed:
            _log.error("%d requests failed in a row; the engine is restarted", self._num_failed_passes)
            port.kill()

    def _on_trace(self, trace: StepTrace, source: str) -> None:
        for frontend in self._frontends.values():
            if frontend.is_tracing:
                frontend.send(m.StepTraced(trace))

    def _on_engine_death(self, how: str, num_requests: int) -> None:
        """Tell the frontends. They resume their requests elsewhere, and connect when the engine is back."""
        died = m.EngineDied(how, tuple(sorted(self._died_with)))
        for frontend in tuple(self._frontends.values()):
            frontend.send(died)
            frontend.close()
