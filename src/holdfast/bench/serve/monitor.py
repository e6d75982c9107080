"""Observe a server from outside: memory, file descriptors and CPU time of its processes, and its
metrics.

Memory is flat if it does not grow in the second half of a run; in the first half the server fills
its KV cache.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import psutil

from holdfast.bench.serve.http_client import Client
from holdfast.bench.serve.http_connection import BadStatus, BrokenStream
from holdfast.errors import EngineStopped

RUNNING, WAITING = "holdfast_num_requests_running", "holdfast_num_requests_waiting"
PAGES_USED, RESTARTS = "holdfast_kv_pages_used", "holdfast_engine_restarts_total"
_PAGES, _PAGES_CACHED = "holdfast_kv_pages", "holdfast_kv_pages_cached"
_IDLE_SECONDS = 15.0
_NUM_SAME = 10  # samples without a change, a tenth of a second apart
_SAMPLE_SECONDS = 1.0
_MIN_SECONDS = 60.0  # a shorter run says nothing about memory
_MAX_GROWTH = 0.02
_MAX_GROWTH_BYTES = 16 << 20
_FULL_SHARE = 0.9  # of the pages


@dataclass(frozen=True)
class ProcessSample:
    """What all processes of a server hold, so many seconds into the run."""

    seconds: float
    resident_bytes: int
    num_fds: int


class ProcessSampler:
    """A process and its children. Children that start or end during a sample are ignored."""

    def __init__(self, pid: int) -> None:
        self._parent = psutil.Process(pid)

    def sample(self, seconds: float = 0.0) -> ProcessSample:
        resident = num_fds = 0
        for process in self._processes():
            with suppress(psutil.Error), process.oneshot():
                resident += process.memory_info().rss
                num_fds += process.num_fds()
        return ProcessSample(seconds, resident, num_fds)

    def cpu_seconds(self) -> float:
        spent = 0.0
        for process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                spent += times.user + times.system
        return spent

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self._parent, *self._parent.children(recursive=True)]
        except psutil.Error:
            return []


@dataclass
class ServerObservation:
    """What was observed of a server. before and after are taken while no client is connected."""

    samples: list[ProcessSample] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=dict)  # the server's metrics after the load
    cpu_seconds: float = 0.0  # of the server's processes, during the load
    before: ProcessSample | None = None
    after: ProcessSample | None = None


@asynccontextmanager
async def monitor_server(client: Client, pid: int | None) -> AsyncIterator[ServerObservation]:
    """Observe a server while the block runs and until it is idle.

    Without a pid only its metrics are read.
    """
    observed = ServerObservation()
    processes = ProcessSampler(pid) if pid is not None else None
    await wait_until_idle(client)
    client.close()
    if processes is None:
        yield observed
        observed.idle = await wait_until_idle(client)
        return
    observed.before = await _sample_idle(processes, most_fds=0)
    observed.cpu_seconds = -processes.cpu_seconds()
    task = asyncio.create_task(_sample_repeatedly(processes, observed.samples))
    try:
        yield observed
    finally:
        task.cancel()
    observed.cpu_seconds += processes.cpu_seconds()
    observed.idle = await wait_until_idle(client)
    client.close()
    observed.after = await _sample_idle(processes, most_fds=observed.before.num_fds)


async def _sample_repeatedly(processes: ProcessSampler, samples: list[ProcessSample]) -> None:
    started = time.perf_counter()
    while True:
        samples.append(processes.sample(time.perf_counter() - started))
        await asyncio.sleep(_SAMPLE_SECONDS)


async def _sample_idle(processes: ProcessSampler, most_fds: int) -> ProcessSample:
    """ProcessSample until there are at most most_fds file descriptors, or their number stops
    falling.

    A server needs a moment to notice that its clients are gone.
    """
    found, num_same = processes.sample(), 0
    while found.num_fds > most_fds and num_same < _NUM_SAME:
        await asyncio.sleep(0.1)
        now = processes.sample()
        num_same = num_same + 1 if now.num_fds >= found.num_fds else 0
        found = now
    return found


def at_share(samples: Sequence[ProcessSample], share: float) -> ProcessSample:
    """The sample nearest to this share of the run."""
    moment = samples[-1].seconds * share
    return min(samples, key=lambda one: abs(one.seconds - moment))


def is_flat(samples: Sequence[ProcessSample], idle: Mapping[str, float]) -> bool | None:
    """Whether memory did not grow from the middle of the run to its end.

    None if unknown: the run was too short, or memory grew while the KV cache had pages that were
    never written.
    """
    if not samples or samples[-1].seconds < _MIN_SECONDS:
        return None
    middle, end = at_share(samples, 0.5).resident_bytes, samples[-1].resident_bytes
    if end - middle <= max(_MAX_GROWTH * middle, _MAX_GROWTH_BYTES):
        return True
    return None if idle.get(_PAGES_CACHED, 0.0) < _FULL_SHARE * idle.get(_PAGES, 0.0) else False


def parse_metrics(text: str) -> dict[str, float]:
    """Parse Prometheus text: the sum of each metric over its labels."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.replace("{", " {", 1).partition(" ")
        words = rest.rpartition("}")[2].split()
        if not line.startswith("#") and words:
            try:
                sums[name] = sums.get(name, 0.0) + float(words[0])
            except ValueError:
                continue
    return sums


async def scrape(client: Client) -> dict[str, float]:
    """The server's metrics; empty if it has no such route."""
    try:
        return parse_metrics((await client.request("GET", "/metrics")).decode(errors="replace"))
    except BadStatus:
        return {}
    except BrokenStream as error:
        raise EngineStopped(f"the server does not answer: {error}") from None


async def wait_until_idle(client: Client) -> dict[str, float]:
    """Read metrics until no request runs or waits and no page is held, or the time is up."""
    until = time.perf_counter() + _IDLE_SECONDS
    while True:
        found = await scrape(client)
        busy = any(found.get(name, 0.0) for name in (RUNNING, WAITING, PAGES_USED))
        if not busy or time.perf_counter() > until:
            return found
        await asyncio.sleep(0.1)
