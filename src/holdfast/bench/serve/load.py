"""A load on a server: clients in a closed loop, or arrivals by chance, until enough was asked.

Those who are still listening when the time is up hear their answers to the end; what is counted per second is counted
inside the time.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.bench.serve.http_client import Client, Heard
from holdfast.bench.serve.workload import Job, Jobs, poisson
from holdfast.errors import ConfigError

_COMPLETIONS = "/v1/completions"
_BREATH_SECONDS = 0.1


@dataclass(frozen=True)
class Pace:
    """How requests come, and when it is enough: one of concurrency and rate, one of num_requests and duration."""

    concurrency: int | None = None
    rate: float | None = None  # requests a second
    num_requests: int | None = None
    duration: float | None = None  # seconds

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ConfigError("requests come either by --concurrency or at a --rate; give one of them")
        if (self.num_requests is None) == (self.duration is None):
            raise ConfigError("a load ends either after --num-requests or after --duration; give one of them")
        for name in ("concurrency", "rate", "num_requests", "duration"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be more than 0, not {value}")

    def __str__(self) -> str:
        how = f"{self.concurrency} clients" if self.rate is None else f"{self.rate:g} requests a second"
        return (
            f"{how}, {f'{self.num_requests} requests' if self.duration is None else f'{self.duration:g} s'}"
        )


@dataclass(frozen=True)
class Spoken:
    """A request and what its client heard."""

    job: Job
    heard: Heard


@dataclass
class Load:
    """All that was said. The time is up at `ended`: after the duration, or with the last answer, which comes at `silent`."""

    started: float
    ended: float = 0.0
    silent: float = 0.0
    spoken: list[Spoken] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.started


class _Quota:
    """What is left to ask."""

    def __init__(self, pace: Pace, started: float) -> None:
        self._left = pace.num_requests if pace.num_requests is not None else float("inf")
        self._until = started + pace.duration if pace.duration is not None else float("inf")

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0 and time.perf_counter() < self._until


class Speaker:
    """Asks jobs of one server, and keeps what was heard."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model

    async def speak(self, job: Job) -> Spoken:
        heard = await self._client.stream(_COMPLETIONS, job.body(self._model), job.leaving)
        return Spoken(job, heard)

    async def put(self, jobs: Jobs, pace: Pace, kinds: Sequence[bool | None] | None = None) -> Load:
        """The whole load. kinds says of each client of a closed loop whether all its requests are deterministic."""
        load = Load(time.perf_counter())
        quota = _Quota(pace, load.started)
        async with asyncio.TaskGroup() as group:
            if pace.rate is not None:
                await self._arrive(jobs, pace.rate, quota, load, group)
            else:
                assert pace.concurrency is not None
                for kind in kinds or (None,) * pace.concurrency:
                    group.create_task(self._repeat(jobs, kind, quota, load))
        load.silent = time.perf_counter()
        load.ended = load.silent if pace.duration is None else load.started + pace.duration
        return load

    async def _repeat(self, jobs: Jobs, kind: bool | None, quota: _Quota, load: Load) -> None:
        """One client of a closed loop. After an error it takes a breath: failing is quick."""
        while quota.take():
            spoken = await self.speak(jobs.draw(kind))
            load.spoken.append(spoken)
            if spoken.heard.error is not None:
                await asyncio.sleep(_BREATH_SECONDS)

    async def _arrive(
        self, jobs: Jobs, rate: float, quota: _Quota, load: Load, group: asyncio.TaskGroup
    ) -> None:
        async def come(job: Job) -> None:
            load.spoken.append(await self.speak(job))

        for moment in poisson(random.Random(f"arrivals {jobs.seed}"), rate):
            await asyncio.sleep(load.started + moment - time.perf_counter())
            if not quota.take():
                return
            group.create_task(come(jobs.draw()))
