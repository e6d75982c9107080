"""The load generator of `holdfast bench frontend`, as a process: `python -m ...load_process JSON`.

JSON is a `StreamLoad`; the `LoadFigures` go to stdout as JSON. Each client holds one connection and sends
the next request when its stream has ended. Events are counted in the bytes and not parsed: the client
of `holdfast bench serve` takes 40 us for each event, more than the server that is measured.
"""

import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import cast

import msgspec
import psutil

from holdfast.server.http.event_loop import run_event_loop

_STATUS = b"HTTP/1.1 200"
_EVENT = b"data: {"
_END = b"\r\n0\r\n\r\n"  # of a chunked body
_CONNECTIONS_AT_ONCE = 64
_END_SECONDS = 30.0
_MAX_ERRORS = 10


@dataclass(frozen=True)
class StreamLoad:
    """Chat completions in num_streams streams, for so many seconds.

    Answers have num_tokens tokens on average, from half to one and a half of that: streams of one length
    would end together, and their next requests would wait for each other.

    processes are pids by name. Their CPU time is measured.
    """

    port: int
    num_streams: int
    num_tokens: int
    seconds: float
    warm_up: float = 1.0  # seconds before those that count
    host: str = "127.0.0.1"
    deterministic: bool = False
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class LoadFigures:
    """What the clients saw within the time that counts. Latencies are in seconds.

    cpu_seconds are of the processes by their names, and of the load generator as `client`.
    """

    seconds: float = 0.0
    num_tokens: int = 0
    num_requests: int = 0
    errors: list[str] = field(default_factory=list)
    num_reads: int = 0
    first_token: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    cpu_seconds: dict[str, float] = field(default_factory=dict)


class _Clients:
    """All connections of one load. `figures` are replaced when the time that counts begins."""

    def __init__(self, load: StreamLoad) -> None:
        self.load = load
        self.figures = LoadFigures()
        self.is_stopping = False
        self._errors: list[str] = []  # at any time
        self._open: set[_Client] = set()

    async def run(self) -> LoadFigures:
        load, loop = self.load, asyncio.get_running_loop()
        for first in range(0, load.num_streams, _CONNECTIONS_AT_ONCE):
            numbers = range(first, min(load.num_streams, first + _CONNECTIONS_AT_ONCE))
            clients = [partial(_Client, self, number) for number in numbers]
            await asyncio.gather(*(loop.create_connection(one, load.host, load.port) for one in clients))
        await asyncio.sleep(load.warm_up)
        self.figures, began, before = LoadFigures(), time.perf_counter(), self._cpu_seconds()
        await asyncio.sleep(load.seconds)
        figures, self.figures = self.figures, LoadFigures()
        figures.seconds = time.perf_counter() - began
        figures.cpu_seconds = {name: after - before[name] for name, after in self._cpu_seconds().items()}
        await self._stop()
        figures.errors = self._errors[:_MAX_ERRORS]
        return figures

    async def _stop(self) -> None:
        """Let the streams end, so that the next load finds an idle server."""
        self.is_stopping = True
        until = time.monotonic() + _END_SECONDS
        while self._open and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for client in tuple(self._open):
            self.drop(client)

    def _cpu_seconds(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = {"client": used.ru_utime + used.ru_stime}
        for name, pids in self.load.processes.items():
            times = [psutil.Process(pid).cpu_times() for pid in pids]
            spent[name] = sum(one.user + one.system for one in times)
        return spent

    def add(self, client: "_Client") -> None:
        self._open.add(client)

    def drop(self, client: "_Client") -> None:
        self._open.discard(client)
        client.close()

    def fail(self, client: "_Client", error: str) -> None:
        self._errors.append(error)
        self.drop(client)

    def lost(self, client: "_Client") -> None:
        if client in self._open:
            self._open.discard(client)
            self._errors.append("a connection was closed before its stream ended")


class _Client(asyncio.Protocol):
    """One connection: sends requests one after the other and counts the events of their streams."""

    _transport: asyncio.Transport

    def __init__(self, clients: _Clients, number: int) -> None:
        self._clients = clients
        self._number = number
        self._num_sent = 0
        self._random = random.Random(number)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._clients.add(self)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.lost(self)

    def close(self) -> None:
        self._transport.abort()

    def _send(self) -> None:
        load = self._clients.load
        self._num_sent += 1
        body = {
            "messages": [{"role": "user", "content": f"Stream {self._number}, request {self._num_sent}."}],
            "max_tokens": self._random.randint(
                -(-load.num_tokens // 2), load.num_tokens + load.num_tokens // 2
            ),
            "ignore_eos": True,
            "stream": True,
            "seed": self._num_sent,
            "deterministic": load.deterministic,
        }
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {load.host}:{load.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._num_events, self._tail = -1, b""  # the first event has a role and no token
        self._sent_at = time.perf_counter()
        self._transport.write(head.encode() + data)

    def data_received(self, data: bytes) -> None:
        clients, figures = self._clients, self._clients.figures
        figures.num_reads += 1
        if not self._tail and not data.startswith(_STATUS):
            clients.fail(self, data[:1000].decode(errors="replace"))
            return
        joined = self._tail + data
        before = self._num_events
        self._num_events += joined.count(_EVENT)
        self._tail = joined[1 - len(_END) :]  # as long as an incomplete mark of an event, too
        if before <= 0 < self._num_events:
            figures.first_token.append(time.perf_counter() - self._sent_at)
        figures.num_tokens += max(0, self._num_events) - max(0, before)
        if joined.endswith(_END):
            figures.num_requests += 1
            figures.total.append(time.perf_counter() - self._sent_at)
            self._next()

    def _next(self) -> None:
        if self._clients.is_stopping:
            self._clients.drop(self)
        else:
            self._send()


async def run_load(load: StreamLoad) -> LoadFigures:
    """Run one load in this process."""
    return await _Clients(load).run()


def main() -> None:
    load = msgspec.json.decode(sys.argv[1], type=StreamLoad)
    print(json.dumps(asdict(run_event_loop(run_load(load)))))


if __name__ == "__main__":
    main()
