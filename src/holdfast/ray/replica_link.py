"""A frontend's connection to one engine replica."""

import asyncio
import logging
import secrets
from dataclasses import dataclass

import msgspec

from holdfast.core.framing import pack_frame
from holdfast.ray.messages import Hello
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_connection import EngineCallbacks, EngineConnection, OutputReceiver

_log = logging.getLogger("holdfast.server")
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class ReplicaInfo:
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
    device: str


class ReplicaLink(EngineConnection):
    """Open until the replica, its engine process or the network between fails.

    died is what the replica said of its engine's death, is_stopping that it ends as it was told to; neither:
    the connection just broke.
    """

    def __init__(
        self, replica: str, info: ReplicaInfo, callbacks: EngineCallbacks, requests: OutputReceiver
    ) -> None:
        super().__init__(callbacks, requests)
        self.replica = replica
        self.info = info
        self.connection = secrets.token_hex(8)
        self.died: m.EngineDied | None = None
        self.is_stopping = False

    _read_task: asyncio.Task[None]

    async def connect(self, frontend: int, token: str) -> None:
        """Connect. Does not wait until the replica has said that it is ready. Raises `OSError`."""
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, self._writer = await asyncio.open_connection(self.info.host, self.info.port)
        hello = Hello(self.info.secret, frontend, token, self.connection)
        self._writer.write(pack_frame(msgspec.msgpack.encode(hello)))
        self._read_task = asyncio.create_task(self._read(reader))

    @property
    def running_ids(self) -> frozenset[int]:
        return frozenset() if self.died is None else frozenset(self.died.running)

    def kill(self) -> None:
        """Close the connection. The replica aborts this frontend's requests."""
        self.is_killed = True
        self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._read_messages(reader)
        except Exception:
            _log.exception("replica %s sent an invalid message", self.replica)
        finally:
            self._writer.close()
            self._on_closed()

    def _handle(self, message: m.FromEngine) -> None:
        if isinstance(message, m.EngineDied):
            self.died = message
        elif isinstance(message, m.ReplicaStopping):
            self.is_stopping = True
        else:
            super()._handle(message)
