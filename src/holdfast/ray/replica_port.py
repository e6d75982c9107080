"""A frontend's connection to one engine replica, and Ray's calls of the requests that were sent over it.

A request is sent at once. Ray's call of it, which Ray counts, is made when the replica has accepted it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from holdfast.core.framing import pack_frame
from holdfast.ray.messages import Hello, RoutedRequest
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks, EnginePort, PortRequests

_log = logging.getLogger("holdfast.server")
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class ReplicaAddress:
    """What a replica says of itself when it joins. It travels through Ray.

    config is a digest of the engine's configuration: replicas of one deployment have the same.
    """

    host: str
    port: int
    secret: str
    fingerprint: str
    config: str
    version: str
    node: str


class ReplicaPort(EnginePort):
    """Open until the replica, its engine process or the network between fails.

    call has Ray call the replica, and returns when the request has ended. died is what the replica said of
    its engine's death, is_stopping that it ends as it was told to; neither: the connection just broke.
    """

    _read_task: asyncio.Task[None]

    def __init__(
        self,
        id: str,
        address: ReplicaAddress,
        callbacks: EngineCallbacks,
        requests: PortRequests,
        call: Callable[[RoutedRequest], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(callbacks, requests, on_change, id=id)
        self.address = address
        self.died: m.EngineDied | None = None
        self.is_stopping = False
        self._call = call
        self._calls: dict[int, asyncio.Task[None]] = {}  # by request id

    async def connect(self, frontend: int, token: str) -> None:
        """Connect. Does not wait until the replica has said that it is ready. Raises `OSError`."""
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, self._writer = await asyncio.open_connection(self.address.host, self.address.port)
        hello = Hello(self.address.secret, frontend, token)
        self._writer.write(pack_frame(msgspec.msgpack.encode(hello)))
        self._read_task = asyncio.create_task(self._read(reader))

    def abort(self, request_id: int) -> None:
        call = self._calls.pop(request_id, None)
        if call is not None:
            call.cancel()
        super().abort(request_id)

    async def _run_call(self, request: RoutedRequest) -> None:
        """Call, and wait until the call has ended. The request's end comes over the connection."""
        try:
            await self._call(request)
        except Exception as error:
            what = request.request_id, self.id, _last_line(error)
            _log.info("Ray's call of request %d at replica %s failed: %s", *what)
            if request.is_routed and request.request_id in self.streams:
                self.kill()  # Ray lost the replica that had taken the call: the connection may be dead
        if self._calls.get(request.request_id) is asyncio.current_task():
            del self._calls[request.request_id]

    @property
    def running_ids(self) -> frozenset[int] | None:
        return None if self.died is None else frozenset(self.died.running)

    def kill(self) -> None:
        """Close the connection. The replica aborts this frontend's requests."""
        self.is_killed = True
        self._writer.transport.abort()

    async def _end(self) -> None:
        await self.end_calls()

    async def end_calls(self) -> None:
        calls, self._calls = tuple(self._calls.values()), {}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _handle(self, message: m.FromEngine) -> None:
        if isinstance(message, m.EngineDied):
            self.died = message
        elif isinstance(message, m.ReplicaStopping):
            self.is_stopping = True
        else:
            super()._handle(message)
            if isinstance(message, m.Accepted) and message.request_id in self.streams:
                request = RoutedRequest(message.request_id, self.id)
                self._calls[request.request_id] = asyncio.create_task(self._run_call(request))


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
