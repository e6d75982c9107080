"""A replica's side of a request: its `Submit` over the connection, and Ray's call beside it."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from holdfast.core.request import Request
from holdfast.core.results import Delta, RequestOutput, Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.ray.messages import FRONTEND_SHIFT, Hello, RoutedRequest
from holdfast.ray.replica_host import ReplicaHost, _FrontendConnection
from holdfast.server.ipc import messages as m

pytestmark = pytest.mark.anyio

FRONTEND = 7
ID = (FRONTEND << FRONTEND_SHIFT) + 1
MOMENT = 0.02


class Engine:
    """The port of an engine process."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.forwarded: list[bytes] = []
        self.aborted: list[int] = []
        self.running_ids: frozenset[int] = frozenset()
        self.is_killed = False

    def submit(self, request_id: int, frame: bytes) -> None:
        self.forwarded.append(frame)

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)


class Replica:
    """A replica with one connected frontend."""

    def __init__(self) -> None:
        self.host = ReplicaHost(EngineConfig("none"))
        self.engine = Engine()
        self.frontend = self.connect()

    def connect(self) -> _FrontendConnection:
        hello = Hello(self.host.secret, FRONTEND, "token")
        frontend = _FrontendConnection(hello, cast(Any, Sink()), cast(Any, self.engine))
        self.host._frontends[FRONTEND] = frontend
        return frontend

    def submit(self, request_id: int = ID) -> bytes:
        frame = m.encode([m.Submit(Request(request_id, (1, 2), SamplingParams(), 0))])
        self.host._handle(self.frontend, frame[4:])
        return frame

    def finish(self, request_id: int = ID) -> None:
        output = RequestOutput(request_id, Delta(), cast(Result, Ended()))
        self.host.step(cast(Any, self.engine), m.StepOutput((), (output,)))

    async def call(self) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(self.host.wait_for_end(RoutedRequest(ID, "replica")))
        await asyncio.sleep(0)
        return task


class Sink:
    """A connection whose other side reads everything."""

    def __init__(self) -> None:
        self.transport = self

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return True


class Ended:
    error_code = None


@pytest.fixture
async def replica() -> Replica:
    return Replica()


async def test_request_is_forwarded_as_it_came_and_its_call_ends_with_it(replica: Replica) -> None:
    frame = replica.submit()
    assert replica.engine.forwarded == [frame]
    call = await replica.call()
    assert not call.done()
    replica.finish()
    await asyncio.wait_for(call, 1)
    assert replica.host.num_live == 0


async def test_call_of_a_request_that_has_ended_or_is_not_here_ends_at_once(replica: Replica) -> None:
    await asyncio.wait_for(await replica.call(), 1)
    replica.submit()
    replica.finish()
    await asyncio.wait_for(await replica.call(), 1)
    assert replica.host.num_live == 0


async def test_lost_frontend_ends_its_requests_unless_it_has_connected_again(replica: Replica) -> None:
    before = replica.frontend
    replica.frontend = replica.connect()
    replica.submit()
    replica.host._on_frontend_lost(before)
    assert replica.host.num_live == 1 and not replica.engine.aborted
    call = await replica.call()
    replica.host._on_frontend_lost(replica.frontend)
    await asyncio.wait_for(call, 1)
    assert replica.host.num_live == 0 and replica.engine.aborted == [ID]


async def test_request_of_another_frontend_or_for_a_dead_engine_is_not_forwarded(replica: Replica) -> None:
    with pytest.raises(msgspec.ValidationError, match="another one"):
        replica.submit((FRONTEND + 1 << FRONTEND_SHIFT) + 1)
    replica.engine.closed.set()
    replica.submit()
    assert not replica.engine.forwarded and replica.host.num_live == 0


async def test_drain_waits_for_requests_that_ray_has_not_heard_of(replica: Replica) -> None:
    replica.submit()
    drain = asyncio.ensure_future(replica.host.drain())
    await asyncio.sleep(MOMENT)
    assert not drain.done()
    replica.finish()
    await asyncio.wait_for(drain, 1)
