"""What one server's frontend carries, with engines that need no model: streams, tok/s, CPU time per token.

    python benchmarks/frontend.py                                              # engines that answer at once
    python benchmarks/frontend.py --step-ms 8 --token-us 10 --streams 8,32,64  # that sleep like a GPU step
    python benchmarks/frontend.py --step-ms 8 --token-us 10 --replicas 2       # through Ray

The frontend, the engine (sleeping_engine.py) and the load generator are processes of their own, and the CPU time
of each is measured. Each client holds one connection and sends the next request when its stream has ended. Events
are counted in the bytes and not parsed: parsing would take longer than the server that is measured. Exits with 1
if a stream fails.
"""

import argparse
import asyncio
import contextlib
import json
import random
import resource
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import psutil

from holdfast.bench.serve import percentiles
from holdfast.engine.config import EngineConfig
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig
from holdfast.server.main import run_event_loop
from measure import Bench, new_parser
from sleeping_engine import StepTime, serve_sleeping

_HOST = "127.0.0.1"
_ENGINE = str(Path(__file__).with_name("sleeping_engine.py"))
_REQUEST_STREAMS = 32  # for the cost of a request
_MAX_WAITING = 1 << 16  # the load must not be refused
_REPLICA_CPUS = 0.1  # a sleeping engine needs hardly any CPU: more of them run than there are cores
_START_SECONDS, _POLL_SECONDS = 120.0, 0.2
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
            await asyncio.gather(*(loop.create_connection(one, _HOST, load.port) for one in clients))
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
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {_HOST}:{load.port}\r\n"
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
            self._next()

    def _next(self) -> None:
        if self._clients.is_stopping:
            self._clients.drop(self)
        else:
            self._send()


@contextmanager
def started(server: ServerConfig, engine: EngineConfig, given: argparse.Namespace) -> Iterator[int]:
    """Run the server while the block runs, and yield its pid. It is ready when all replicas are."""
    url = f"http://{_HOST}:{server.port}/health"
    times = StepTime(given.step_ms / 1e3, given.token_us / 1e6)
    pool = ReplicasConfig(replicas=given.replicas or None, replica_cpus=_REPLICA_CPUS)
    child = get_context("spawn").Process(target=serve_sleeping, args=(times, server, engine, pool))
    child.start()
    try:
        until, num_ready = time.monotonic() + _START_SECONDS, -1
        while num_ready < given.replicas:  # 0 without Ray
            if not child.is_alive() or time.monotonic() > until:
                raise RuntimeError(
                    f"the server did not start, {num_ready} of {given.replicas} replicas are ready"
                )
            with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:
                health = json.load(response)
                num_ready = sum(one["state"] == "ready" for one in health.get("replicas", ()))
            time.sleep(_POLL_SECONDS)
        assert child.pid is not None
        yield child.pid
    finally:
        child.terminate()
        child.join()


def engine_pids() -> tuple[int, ...]:
    """Return all sleeping engines of this machine. Those of replicas are no children of the server."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if _ENGINE in process.cmdline():
                found.append(process.pid)
    return tuple(found)


def run_load(load: StreamLoad) -> LoadFigures:
    """Run the load generator, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(run_clients, load).result()


def run_clients(load: StreamLoad) -> LoadFigures:
    return run_event_loop(_Clients(load).run())


def fields_of(load: StreamLoad, figures: LoadFigures) -> dict[str, Any]:
    """Return a row. Latencies are in ms, CPU times in us; `core` is a share of one core. A frontend whose
    share is below 1 waited: for the engine, or for a core."""
    seconds, tokens, requests = figures.seconds, max(1, figures.num_tokens), max(1, figures.num_requests)
    first, spent = percentiles(figures.first_token), figures.cpu_seconds
    return {
        "streams": load.num_streams,
        "tokens": load.num_tokens,
        "tok/s": figures.num_tokens / seconds,
        "req/s": figures.num_requests / seconds,
        **{f"first token {name} ms": 1e3 * value for name, value in first.items()},
        **{f"{name} us/tok": 1e6 * one / tokens for name, one in spent.items()},
        **{f"{name} us/req": 1e6 * one / requests for name, one in spent.items()},
        "frontend core": spent["frontend"] / seconds,
        "tokens per read": figures.num_tokens / max(1, figures.num_reads),
        "error": "; ".join(figures.errors) or None,
    }


def run_bench(bench: Bench, given: argparse.Namespace) -> None:
    server = ServerConfig(
        host=_HOST, port=free_port(), max_waiting=_MAX_WAITING, log_level="warning", inspector=False
    )
    with started(server, EngineConfig(given.model, max_num_seqs=max(given.streams)), given) as frontend:
        base = StreamLoad(
            server.port,
            _REQUEST_STREAMS,
            1,
            given.seconds,
            deterministic=given.deterministic,
            processes={"frontend": (frontend,), "engine": engine_pids()},
        )
        short = fields_of(base, run_load(base))
        bench.row(part="requests of one token", **short)
        for num_streams in given.streams:
            load = replace(base, num_streams=num_streams, num_tokens=given.num_tokens)
            last = fields_of(load, run_load(load))
            bench.row(part="streams", step_ms=given.step_ms, replicas=given.replicas, **last)
        request_us, per_request = short["frontend us/req"], last["tok/s"] / max(1e-9, last["req/s"])
        token_us = (last["frontend us/req"] - request_us) / max(1.0, per_request - 1)
        per_core = 1e6 * given.num_tokens / (request_us + token_us * (given.num_tokens - 1))
        costs = {"request us": request_us, "token us": token_us, "tok/s of one core": per_core}
        bench.row(part="cost of the frontend", **costs)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument(
        "--model", help="the model whose tokenizer and template are served; default: the default"
    )
    parser.add_argument("--streams", type=numbers, default=[1, 32, 256, 1024], help="one load each")
    parser.add_argument("--num-tokens", type=int, default=128, help="tokens of an answer, on average")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of each load")
    parser.add_argument("--step-ms", type=float, default=0.0, help="sleep of a step; 0: it answers at once")
    parser.add_argument("--token-us", type=float, default=0.0, help="more for each token of a step")
    parser.add_argument("--replicas", type=int, default=0, help="so many on a Ray cluster of this machine")
    parser.add_argument("--deterministic", action="store_true", help="ask for deterministic answers")
    parser.add_argument("--out", type=Path, help="folder for bench-frontend.json")
    given = parser.parse_args()
    bench = Bench("bench-frontend", given.out)
    with bench.part(part="frontend"):
        run_bench(bench, given)
    bench.finish()


if __name__ == "__main__":
    main()
