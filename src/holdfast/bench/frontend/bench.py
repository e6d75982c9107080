"""`holdfast bench frontend`: what one frontend carries, with an engine that needs no model.

The frontend, the engine and the load generator are processes of their own, and the CPU time of each is
measured. An engine that answers at once shows the limit; one that sleeps like a GPU step shows the cost
of a token where each step gives each stream one.
"""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import psutil

from holdfast.bench.frontend.load_process import LoadFigures, StreamLoad
from holdfast.bench.frontend.report import FrontendCell, FrontendReport
from holdfast.bench.frontend.sleeping_runner import StepTime
from holdfast.bench.frontend.sleeping_server import SleepingServer
from holdfast.bench.serve.http_client import Client
from holdfast.bench.serve.http_connection import Address
from holdfast.bench.serve.server_process import ServerChild, free_port, run_server
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig

_HOST = "127.0.0.1"
_ENGINE = "holdfast.bench.frontend.sleeping_engine"
_REQUEST_STREAMS = 32  # for the cost of a request
_MAX_WAITING = 1 << 16  # the load must not be refused
_PROFILE_RATE = 200  # samples a second
_NUM_PROFILED = 40  # functions
_REPLICA_CPUS = 0.1
_POLL_SECONDS, _REPLICA_POLLS = 0.5, 240


@dataclass(frozen=True)
class FrontendLoad:
    """The loads of one server: so many streams, one number after the other."""

    streams: tuple[int, ...] = (1, 32, 256, 1024)
    num_tokens: int = 128
    seconds: float = 6.0
    deterministic: bool = False

    def __post_init__(self) -> None:
        if not self.streams or min(self.streams) < 1:
            raise ConfigError(f"--streams must be numbers from 1, such as 1,32,256; got {self.streams}")
        if self.num_tokens < 2:
            raise ConfigError(f"an answer needs at least 2 tokens, not {self.num_tokens}")


def measure_frontend(
    engine: EngineConfig,
    times: StepTime,
    load: FrontendLoad,
    log: Callable[[str], None],
    *,
    replicas: int = 0,
    profile: bool = False,
) -> FrontendReport:
    """Start a server with a sleeping engine and run all loads on it. replicas: so many on a Ray cluster
    of this machine instead, each with this engine."""
    if profile and find_profiler() is None:
        raise ConfigError("--profile needs py-spy; install it with pip install py-spy")
    from holdfast.bench.machine import machine_name  # imports torch, which nothing else here needs

    name = f"holdfast serve --replicas {replicas}" if replicas else "holdfast serve"
    report = FrontendReport(machine_name(), name, times.step, times.token, replicas)
    settings = sleeping_server(engine, times, load, replicas)
    asyncio.run(_measure(report, settings, load, log, profile=profile))
    return report


def sleeping_server(
    engine: EngineConfig, times: StepTime, load: FrontendLoad, replicas: int = 0
) -> SleepingServer:
    """A server whose limits do not refuse the load."""
    most = max(load.streams)
    if engine.max_num_seqs is None:
        engine = replace(engine, max_num_seqs=most)
    server = ServerConfig(
        host=_HOST, port=free_port(), max_waiting=_MAX_WAITING, log_level="warning", inspector=False
    )
    # A sleeping engine needs hardly any CPU: more of them run than there are cores.
    pool = ReplicasConfig(replicas=replicas or None, replica_cpus=_REPLICA_CPUS)
    return SleepingServer(times, server, engine, pool)


async def _measure(
    report: FrontendReport,
    settings: SleepingServer,
    load: FrontendLoad,
    log: Callable[[str], None],
    *,
    profile: bool,
) -> None:
    async with _started(settings) as child:
        await _wait_for_replicas(child, report.replicas)
        base = StreamLoad(
            child.address.port,
            _REQUEST_STREAMS,
            1,
            load.seconds,
            host=_HOST,
            deterministic=load.deterministic,
            processes={"frontend": (child.pid,), "engine": engine_pids()},
        )
        log(f"requests of one token, {_REQUEST_STREAMS} streams")
        short = FrontendCell.of(base, await _run_load(base))
        report.request_us = short.cpu_us_per_request["frontend"]
        for num_streams in load.streams:
            log(f"{num_streams} streams of {load.num_tokens} tokens")
            one = replace(base, num_streams=num_streams, num_tokens=load.num_tokens)
            report.cells.append(FrontendCell.of(one, await _run_load(one)))
        last = report.cells[-1]
        tokens_per_request = last.tokens_per_second / max(1e-9, last.requests_per_second)
        more = last.cpu_us_per_request["frontend"] - report.request_us
        report.token_us = more / max(1.0, tokens_per_request - 1)
        if profile:
            log("profile")
            report.profile = await _profile(child, replace(one, seconds=load.seconds + 2.0))


@asynccontextmanager
async def _started(settings: SleepingServer) -> AsyncIterator[ServerChild]:
    address = Address(settings.server.host, settings.server.port)
    async with run_server(settings.command, address) as child:
        yield child


def engine_pids() -> tuple[int, ...]:
    """All sleeping engines of this machine. Those of replicas are no children of the server."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if _ENGINE in process.cmdline():
                found.append(process.pid)
    return tuple(found)


async def _wait_for_replicas(child: ServerChild, num_replicas: int) -> None:
    """Wait until every replica takes requests; a server is healthy with the first."""
    async with Client(child.address) as client:
        for _ in range(_REPLICA_POLLS):
            health = json.loads(await client.request("GET", "/health"))
            ready = [one for one in health.get("replicas", ()) if one["state"] == "ready"]
            if len(ready) >= num_replicas:
                return
            await asyncio.sleep(_POLL_SECONDS)
    raise EngineStopped(f"{len(ready)} of {num_replicas} replicas are ready")


async def _run_load(load: StreamLoad) -> LoadFigures:
    """Run the load generator."""
    command = (sys.executable, "-m", "holdfast.bench.frontend.load_process", json.dumps(asdict(load)))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise EngineStopped(f"the load generator ended with {process.returncode}")
    return msgspec.json.decode(output, type=LoadFigures)


def find_profiler() -> str | None:
    """py-spy, beside this Python or on the search path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


async def _profile(child: ServerChild, load: StreamLoad) -> list[tuple[str, float]]:
    """The shares of the frontend's samples, by function with all that it calls."""
    profiler = find_profiler()
    assert profiler is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stacks"
        loading = asyncio.create_task(_run_load(load))
        await asyncio.sleep(load.warm_up)
        command = (profiler, "record", "-p", str(child.pid), "-d", str(int(load.seconds - 1)), "-f", "raw")
        settings = ("-r", str(_PROFILE_RATE), "-o", str(file))
        process = await asyncio.create_subprocess_exec(
            *command, *settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        _, errors = await process.communicate()
        await loading
        if process.returncode:
            raise EngineStopped(f"py-spy failed: {errors.decode(errors='replace').strip()[-300:]}")
        return shares_of(file.read_text().splitlines())


def shares_of(stacks: Sequence[str]) -> list[tuple[str, float]]:
    """The share of each function in folded stacks ("main;f (a.py:3);g (b.py:1) 17") of the event loop."""
    counts: Counter[str] = Counter()
    total = 0
    for line in stacks:
        stack, _, number = line.rpartition(" ")
        if "run_event_loop" not in stack:
            continue  # another thread
        total += int(number)
        for name in {frame.rpartition(":")[0].strip() + ")" for frame in stack.split(";")}:
            counts[name] += int(number)
    return [(name, count / total) for name, count in counts.most_common(_NUM_PROFILED)]
