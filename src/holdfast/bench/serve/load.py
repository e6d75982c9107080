"""The load generator: a closed loop of clients, or Poisson arrivals, until the load ends.

Requests that are still streaming when the time is up run to their end. Figures per second count
only what came before.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.bench.serve.http_client import Client, StreamResult
from holdfast.bench.serve.workload import LoadRequest, Workload, poisson_arrivals
from holdfast.errors import ConfigError

_COMPLETIONS = "/v1/completions"
_RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class ArrivalConfig:
    """How requests arrive (concurrency or rate) and when the load ends (num_requests or duration)."""

    concurrency: int | None = None
    rate: float | None = None  # requests per second
    num_requests: int | None = None
    duration: float | None = None  # seconds

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ConfigError("requests arrive either by --concurrency or at a --rate; give one of them")
        if (self.num_requests is None) == (self.duration is None):
            raise ConfigError("a load ends either after --num-requests or after --duration; give one of them")
        for name in ("concurrency", "rate", "num_requests", "duration"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be more than 0, not {value}")

    def __str__(self) -> str:
        how = f"{self.concurrency} clients" if self.rate is None else f"{self.rate:g} requests per second"
        end = f"{self.num_requests} requests" if self.duration is None else f"{self.duration:g} s"
        return f"{how}, {end}"


@dataclass(frozen=True)
class LoadResult:
    """A request and the stream its client saw."""

    request: LoadRequest
    stream: StreamResult


@dataclass
class LoadRun:
    """All results of a load. `ended` is when the time was up, `drained` when the last stream ended.

    Without a duration both are the same.
    """

    started: float
    ended: float = 0.0
    drained: float = 0.0
    results: list[LoadResult] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.started


class _Quota:
    """Decides whether another request may be sent."""

    def __init__(self, arrivals: ArrivalConfig, started: float) -> None:
        self._left = arrivals.num_requests if arrivals.num_requests is not None else float("inf")
        self._until = started + arrivals.duration if arrivals.duration is not None else float("inf")

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0 and time.perf_counter() < self._until


class LoadGenerator:
    """Sends requests to one server and collects the results."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model

    async def send(self, request: LoadRequest) -> LoadResult:
        stream = await self._client.stream(_COMPLETIONS, request.body(self._model), request.disconnect)
        return LoadResult(request, stream)

    async def run(
        self, workload: Workload, arrivals: ArrivalConfig, kinds: Sequence[bool | None] | None = None
    ) -> LoadRun:
        """Run the whole load.

        kinds says for each client of a closed loop whether its requests are deterministic.
        """
        run = LoadRun(time.perf_counter())
        quota = _Quota(arrivals, run.started)
        async with asyncio.TaskGroup() as group:
            if arrivals.rate is not None:
                await self._send_at_rate(workload, arrivals.rate, quota, run, group)
            else:
                assert arrivals.concurrency is not None
                for kind in kinds or (None,) * arrivals.concurrency:
                    group.create_task(self._send_in_loop(workload, kind, quota, run))
        run.drained = time.perf_counter()
        run.ended = run.drained if arrivals.duration is None else run.started + arrivals.duration
        return run

    async def _send_in_loop(self, workload: Workload, kind: bool | None, quota: _Quota, run: LoadRun) -> None:
        """One client of a closed loop. It pauses after an error, because errors return quickly."""
        while quota.take():
            result = await self.send(workload.draw(kind))
            run.results.append(result)
            if result.stream.error is not None:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _send_at_rate(
        self, workload: Workload, rate: float, quota: _Quota, run: LoadRun, group: asyncio.TaskGroup
    ) -> None:
        async def send(request: LoadRequest) -> None:
            run.results.append(await self.send(request))

        for moment in poisson_arrivals(random.Random(f"arrivals {workload.seed}"), rate):
            await asyncio.sleep(run.started + moment - time.perf_counter())
            if not quota.take():
                return
            group.create_task(send(workload.draw()))
