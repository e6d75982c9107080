"""A frontend's side of a request at a replica: its frame, and Ray's call beside it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import EngineStopped
from holdfast.ray.messages import RoutedRequest, prefix_hashes
from holdfast.ray.replica_port import ReplicaAddress, ReplicaPort
from holdfast.ray.routing_table import RoutingTable
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.ipc.requests import RequestTable

pytestmark = pytest.mark.anyio

READY = m.Ready(320, 512, 16, 4096, None, None)
ADDRESS = ReplicaAddress("host", 1, "secret", "one", "config", "1.0", "node")


class Sink:
    """A connection whose other side reads everything."""

    def __init__(self) -> None:
        self.transport = self
        self.frames: list[bytes] = []
        self.is_aborted = False

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.is_aborted = True


class Calls:
    """Ray's calls: they last until they are cancelled or fail."""

    def __init__(self) -> None:
        self.begun: list[RoutedRequest] = []
        self.cancelled: list[int] = []
        self.failure = asyncio.Event()

    async def __call__(self, request: RoutedRequest) -> None:
        self.begun.append(request)
        try:
            await self.failure.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        raise RuntimeError("the actor died")


class Connected:
    """A port with a sink, and the table of its requests."""

    def __init__(self) -> None:
        self.calls, self.sink = Calls(), Sink()
        self.requests = RequestTable()
        self.port = ReplicaPort("a", ADDRESS, EngineCallbacks(), self.requests, self.calls, lambda: None)
        self.port.ready, self.port.fingerprint = READY, m.FingerprintReady("one", {}, "1.0")
        self.port._writer = cast(Any, self.sink)
        self.requests.set_ports([self.port], self.port.fingerprint, READY)

    def submit(self) -> Any:
        return self.requests.submit(asyncio.Event(), Request(0, (1, 2), SamplingParams(), 0))

    def accept(self, *request_ids: int) -> None:
        for one in request_ids:
            self.port._handle(m.Accepted(one))

    def submitted(self) -> list[int]:
        decoded = [msgspec.msgpack.decode(frame[4:]) for frame in self.sink.frames]
        return [message[1]["request_id"] for message in decoded if message[0] == "Submit"]


@pytest.fixture
async def one() -> AsyncIterator[Connected]:
    connected = Connected()
    yield connected
    await connected.port.end_calls()


async def test_request_is_sent_once_and_at_once_to_the_replica_that_ray_calls_when_it_is_accepted(
    one: Connected,
) -> None:
    one.submit(), one.submit(), one.submit().cancel(EngineStopped("enough"))
    assert one.submitted() == [1, 2, 3] and not one.calls.begun
    one.accept(1, 2, 3)
    await asyncio.sleep(0)
    assert one.calls.begun == [RoutedRequest(1, "a"), RoutedRequest(2, "a")]


async def test_cancelled_request_is_aborted_and_its_call_cancelled(one: Connected) -> None:
    stream = one.submit()
    one.accept(1)
    await asyncio.sleep(0)
    stream.cancel(EngineStopped("enough"))
    await asyncio.sleep(0)
    assert one.sink.frames[-1] == m.encode([m.Abort(1)]) and one.calls.cancelled == [1]
    assert one.requests.num_live == 0 and not one.sink.is_aborted


@pytest.mark.parametrize("is_routed", [False, True])
async def test_call_that_fails_ends_the_connection_of_the_replica_that_had_taken_it(
    one: Connected, is_routed: bool
) -> None:
    """Before that Ray did not reach the replica; the request runs."""

    one.submit()
    one.accept(1)
    await asyncio.sleep(0)
    one.calls.begun[0].is_routed = is_routed
    one.calls.failure.set()
    await asyncio.gather(*one.port._calls.values())
    assert one.sink.is_aborted == is_routed


def test_replica_with_the_prefix_is_chosen_while_its_load_allows() -> None:
    table = RoutingTable()
    prompt = list(range(200))
    prefix = prefix_hashes(prompt, "")
    assert len(prefix) == 3 and prefix_hashes(prompt, "tenant") != prefix
    assert prefix_hashes([*prompt[:130], 0], "") == prefix[:2]
    assert table.choose({"a": 3, "b": 2}, prefix) == "b"
    assert table.choose({"a": 0, "b": 4}, prefix[:1]) == "b"
    assert table.choose({"a": 0, "b": 5}, ()) == "a"
    assert table.choose({"a": 0, "b": 5}, prefix[:1]) == "a"
    assert table.choose({"a": 4, "b": 0}, prefix[:1]) == "a"  # it has seen the beginning last
