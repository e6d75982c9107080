"""Runs blocking work in a bounded number of threads, fairly between clients.

    result = await queue.run(client, work, cost=0.01)     from the event loop
    job = queue.submit(client, work, cost=0.01)           from any thread

A client is an opaque name; deficit round robin (`fair_queue`) between clients decides what runs
next. Cost is the estimated number of seconds; what the work took beyond it is charged afterwards. Work
whose client left is never started; if it runs, its `CancelToken` is cancelled. When too much waits,
the newest work of the client with most waiting is refused with 429. An executor of the standard
library has one queue for all and cannot cancel what runs.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.core.cancel_token import CancelToken
from holdfast.server.errors import ApiError
from holdfast.server.work.fair_queue import FairQueue

_QUANTUM_SECONDS = 0.005
_MAX_RETRY_SECONDS = 60

T = TypeVar("T")
Work = Callable[[CancelToken], T]


class Job:
    """One piece of work. `done` is called once, in any thread, unless the job is cancelled first."""

    def __init__(
        self, client: str, work: Work[Any], cost: float, done: Callable[["Job"], None] | None
    ) -> None:
        self.client = client
        self.token = CancelToken()
        self.result: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._cost = cost
        self._done = done

    @property
    def cost(self) -> float:
        return self._cost

    def run(self) -> None:
        """Do the work, in the thread of a worker."""
        try:
            self.result = self._work(self.token)
        except BaseException as error:
            self.error = error
        self._finish()

    def refuse(self, error: Exception) -> None:
        """End the job without running it."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self.token.is_cancelled:
            self._done(self)


class WorkQueue:
    """At most `workers` jobs run at once, `max_per_client` of them of one client.

    rest: after a job a worker rests so many times as long as the job took. Jobs that hold the GIL
    leave it to the event loop meanwhile.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        max_per_client: int | None = None,
        max_waiting: int = 256,
        rest: float = 0.0,
    ) -> None:
        self._rest = rest
        self._workers = workers
        self._max_per_client = max_per_client or workers
        self._max_waiting = max_waiting
        self._pool = ThreadPoolExecutor(workers, name)
        self._lock = threading.Lock()
        self._waiting: FairQueue[Job] = FairQueue(_QUANTUM_SECONDS)
        self._running: Counter[str] = Counter()  # by client
        self._num_threads = 0  # that run jobs now

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return self._running.total()

    def submit(
        self, client: str, work: Work[Any], *, cost: float, done: Callable[[Job], None] | None = None
    ) -> Job:
        """Queue work. Raises an `ApiError` 429 if too much of this client's work waits."""
        job = Job(client, work, cost, done)
        refused = None
        with self._lock:
            self._waiting.push(client, job, cost)
            if len(self._waiting) > self._max_waiting:
                refused, error = self._waiting.pop_last_of_longest(), self._too_many()
            if self._num_threads < self._workers and len(self._waiting):
                self._num_threads += 1
                self._pool.submit(self._serve)
        if refused is job:
            raise error
        if refused is not None:
            refused.refuse(error)
        return job

    async def run(self, client: str, work: Work[T], *, cost: float = 0.001) -> T:
        """The result of the work. If this task is cancelled, so is the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(job: Job) -> None:
            if future.done():
                return
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.result)

        def done(job: Job) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(settle, job)

        job = self.submit(client, work, cost=cost, done=done)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(job)
            raise

    def cancel(self, job: Job) -> bool:
        """Give a job up: a waiting one never starts, a running one is told to end. Whether it was
        still waiting."""
        with self._lock:
            was_waiting = self._waiting.remove(job.client, job)
        job.token.cancel()
        return was_waiting

    def close(self) -> None:
        """Start nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _serve(self) -> None:
        """Run jobs until none is left that may run."""
        while True:
            with self._lock:
                job = self._waiting.pop(self._may_run)
                if job is None:
                    self._num_threads -= 1
                    if self._num_threads == 0:
                        self._waiting.forgive()
                    return
                self._running[job.client] += 1
            began = time.monotonic()
            job.run()
            seconds = time.monotonic() - began
            with self._lock:
                self._running[job.client] -= 1
                if not self._running[job.client]:
                    del self._running[job.client]
                self._waiting.charge(job.client, max(0.0, seconds - job.cost))
            if self._rest:
                time.sleep(self._rest * seconds)

    def _may_run(self, client: str) -> bool:
        return self._running[client] < self._max_per_client

    def _too_many(self) -> ApiError:
        seconds = math.ceil(self._waiting.cost / self._workers)
        return ApiError(
            429,
            "too many requests wait to be prepared; ask again later",
            code="too_many_requests",
            headers={"Retry-After": str(min(_MAX_RETRY_SECONDS, max(1, seconds)))},
        )
