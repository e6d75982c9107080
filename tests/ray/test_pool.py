"""Which replicas a frontend counts as lost: those that end without saying so, whoever notices it first."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.core.framing import pack_frame, read_frame_async
from holdfast.engine.config import EngineConfig
from holdfast.ray.messages import Hello
from holdfast.ray.replica_port import ReplicaAddress
from holdfast.server.config import ServerConfig
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.version import __version__

pool_module = pytest.importorskip("holdfast.ray.pool", reason="Ray is not installed")
ID = "a1"


class Replica:
    """Takes one frontend, and ends when it is told to."""

    _server: asyncio.Server
    _writer: asyncio.StreamWriter

    async def listen(self) -> ReplicaAddress:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return ReplicaAddress(host, port, "secret", "one", "config", __version__, "node")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        msgspec.msgpack.decode(await read_frame_async(reader), type=Hello)
        ready = m.Ready(320, 512, 16, 4096, None, None)
        self._writer = writer
        writer.write(m.encode([m.FingerprintReady("one", {}, "1.0"), ready]))

    def end(self, *last_words: m.FromEngine) -> None:
        self._server.close()
        for message in last_words:
            self._writer.write(pack_frame(msgspec.msgpack.encode(message)))
        self._writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def num_lost(end: Callable[[Replica, Callable[[], None]], Awaitable[None]]) -> tuple[int, list[str]]:
    """Connect a replica, end it (with what takes it out of Ray's set), and count."""

    async def run() -> tuple[int, list[str]]:
        deaths: list[str] = []
        callbacks = EngineCallbacks(on_death=lambda how, num_requests: deaths.append(how))
        pool = pool_module.ReplicaPool("app", ServerConfig(), EngineConfig("none"), callbacks)
        replica = Replica()
        known = SimpleNamespace(
            replica_id=SimpleNamespace(unique_id=ID), replica_metadata=asdict(await replica.listen())
        )
        pool._on_replicas([known])
        await until(lambda: pool.is_ready)
        await end(replica, lambda: pool._on_replicas([]))
        await until(lambda: not pool.is_ready)
        pool._on_replicas([])
        await until(lambda: not pool._members)
        return pool.num_restarts, deaths

    return asyncio.run(run())


async def end_before_ray_knows(replica: Replica, remove: Callable[[], None]) -> None:
    replica.end()


async def end_after_ray_knows(replica: Replica, remove: Callable[[], None]) -> None:
    remove()
    replica.end()


async def stop(replica: Replica, remove: Callable[[], None]) -> None:
    remove()
    replica.end(m.ReplicaStopping())


async def lose_engine(replica: Replica, remove: Callable[[], None]) -> None:
    replica.end(m.EngineDied("was killed", ()))


@pytest.mark.parametrize("end", [end_before_ray_knows, end_after_ray_knows, lose_engine])
def test_replica_that_dies_is_counted_once(
    end: Callable[[Replica, Callable[[], None]], Awaitable[None]],
) -> None:
    count, deaths = num_lost(end)
    assert count == 1 and len(deaths) == 1


def test_replica_that_was_told_to_stop_is_not_counted() -> None:
    assert num_lost(stop) == (0, [])
