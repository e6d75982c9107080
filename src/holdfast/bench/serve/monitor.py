"""A server watched from outside: memory, handles and CPU time of its processes, and its own metrics.

What it holds is flat if it does not grow in the second half of a run; in the first it fills its cache.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import psutil

from holdfast.bench.serve.http_client import Client
from holdfast.bench.serve.http_connection import BrokenStream, Refused
from holdfast.errors import EngineStopped

RUNNING, WAITING = "holdfast_num_requests_running", "holdfast_num_requests_waiting"
PAGES_USED, RESTARTS = "holdfast_kv_pages_used", "holdfast_engine_restarts_total"
_PAGES, _PAGES_CACHED = "holdfast_kv_pages", "holdfast_kv_pages_cached"
_IDLE_SECONDS = 15.0
_NUM_SAME = 10  # looks at handles, a tenth of a second apart
_SAMPLE_SECONDS = 1.0
_SHORTEST_SECONDS = 60.0  # a shorter run says nothing about memory
_ALLOWED_GROWTH = 0.02
_ALLOWED_BYTES = 16 << 20
_FULL = 0.9  # share of pages


@dataclass(frozen=True)
class Sample:
    """What a server's processes held together, so many seconds into the run."""

    seconds: float
    resident_bytes: int
    num_fds: int


class ProcessWatch:
    """A process and its children. Those that come or go while they are counted do not matter."""

    def __init__(self, pid: int) -> None:
        self._parent = psutil.Process(pid)

    def sample(self, seconds: float = 0.0) -> Sample:
        resident = num_fds = 0
        for process in self._processes():
            with suppress(psutil.Error), process.oneshot():
                resident += process.memory_info().rss
                num_fds += process.num_fds()
        return Sample(seconds, resident, num_fds)

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
class Watched:
    """A run as it was seen from outside. Samples are taken while it runs, first and last once nobody is connected."""

    samples: list[Sample] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=dict)  # the server's metrics, once it is idle again
    cpu_seconds: float = 0.0  # of the server's processes
    before: Sample | None = None
    after: Sample | None = None


@asynccontextmanager
async def watching(client: Client, pid: int | None) -> AsyncIterator[Watched]:
    """Watch a server while the block runs, until it is idle again. Without a pid only its metrics are read."""
    watched = Watched()
    processes = ProcessWatch(pid) if pid is not None else None
    await settle(client)
    client.close()
    if processes is None:
        yield watched
        watched.idle = await settle(client)
        return
    watched.before = await _sample_idle(processes, most_fds=0)
    watched.cpu_seconds = -processes.cpu_seconds()
    task = asyncio.create_task(_keep_sampling(processes, watched.samples))
    try:
        yield watched
    finally:
        task.cancel()
    watched.cpu_seconds += processes.cpu_seconds()
    watched.idle = await settle(client)
    client.close()
    watched.after = await _sample_idle(processes, most_fds=watched.before.num_fds)


async def _keep_sampling(processes: ProcessWatch, samples: list[Sample]) -> None:
    started = time.perf_counter()
    while True:
        samples.append(processes.sample(time.perf_counter() - started))
        await asyncio.sleep(_SAMPLE_SECONDS)


async def _sample_idle(processes: ProcessWatch, most_fds: int) -> Sample:
    """A server needs a moment to see that its clients are gone: look until it has no more handles than that, or no less."""
    found, num_same = processes.sample(), 0
    while found.num_fds > most_fds and num_same < _NUM_SAME:
        await asyncio.sleep(0.1)
        now = processes.sample()
        num_same = num_same + 1 if now.num_fds >= found.num_fds else 0
        found = now
    return found


def at_share(samples: Sequence[Sample], share: float) -> Sample:
    """The sample nearest to this share of the run."""
    moment = samples[-1].seconds * share
    return min(samples, key=lambda one: abs(one.seconds - moment))


def is_flat(samples: Sequence[Sample], idle: Mapping[str, float]) -> bool | None:
    """Whether memory stayed from the middle of the run to its end.

    None if nobody can tell: the run was too short, or memory grew while the KV cache had pages that were never written.
    """
    if not samples or samples[-1].seconds < _SHORTEST_SECONDS:
        return None
    middle, end = at_share(samples, 0.5).resident_bytes, samples[-1].resident_bytes
    if end - middle <= max(_ALLOWED_GROWTH * middle, _ALLOWED_BYTES):
        return True
    return None if idle.get(_PAGES_CACHED, 0.0) < _FULL * idle.get(_PAGES, 0.0) else False


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text: every name's sum over its labels."""
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
    """The server's metrics; none where it has no such route."""
    try:
        return parse_metrics((await client.ask("GET", "/metrics")).decode(errors="replace"))
    except Refused:
        return {}
    except BrokenStream as error:
        raise EngineStopped(f"the server does not answer any more: {error}") from None


async def settle(client: Client) -> dict[str, float]:
    """The metrics of an idle server: asked until nobody runs, waits or holds a page, or the time is up."""
    until = time.perf_counter() + _IDLE_SECONDS
    while True:
        found = await scrape(client)
        busy = any(found.get(name, 0.0) for name in (RUNNING, WAITING, PAGES_USED))
        if not busy or time.perf_counter() > until:
            return found
        await asyncio.sleep(0.1)
