"""Runs blocking work in a bounded number of threads, fairly between clients.

    result = await queue.run(client, work, cost=0.01)     from the event loop
    job = queue.submit(client, work, cost=0.01)           from any thread

A client is an opaque name. Cost is the estimated number of seconds; what the work took beyond it is
charged afterwards, to what else the client has waiting.

    short work    has threads of its own, so that it never waits for long work
    long work     of one client leaves a thread for the others

Most of it releases the GIL (tokenising, waiting for a sandbox), so that the event loop goes on. Work
whose client left is never started; if it runs, its `CancelToken` is cancelled. When too much waits,
the newest work of the client with most waiting is refused. An executor of the standard library has
one queue for all and cannot cancel what runs.
"""

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.core.cancel_token import CancelToken
from holdfast.errors import TooBusy

SHORT_SECONDS = 0.02  # work of this cost at most is short
_SHORT_WORKERS = 2
_MAX_RETRY_SECONDS = 60

T = TypeVar("T")
Work = Callable[[CancelToken], T]
_LEAST_COST = 1e-6  # an item of no cost would not end its client's turn


@dataclass
class _Client(Generic[T]):
    taken: float  # the costs of its items so far, from the level at which it began
    items: deque[tuple[T, float]] = field(default_factory=deque)  # with their costs


class FairQueue(Generic[T]):
    """A queue for each client, and turns between the clients. Not thread-safe.

    A client's turn comes when the costs of what it has taken are the least, counted from when it last had
    nothing waiting. So clients that always have items waiting get the same cost per time, whatever the
    number and the size of their items. A queue without rivals never waits, and a client that comes back
    starts at the level of those that are served then: nothing is saved, and nothing is owed.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}  # that have waiting items
        self._level = 0.0  # what the client that was served last had taken

    def __len__(self) -> int:
        return sum(len(client.items) for client in self._clients.values())

    @property
    def cost(self) -> float:
        """Of all waiting items."""
        return sum(cost for client in self._clients.values() for _, cost in client.items)

    def push(self, client: str, item: T, cost: float) -> None:
        self._clients.setdefault(client, _Client(self._level)).items.append((item, max(cost, _LEAST_COST)))

    def pop(self, may_run: Callable[[str], bool] = lambda client: True) -> T | None:
        """Return the next item of a client that may run, or None."""
        able = [client for client in self._clients if may_run(client)]
        if not able:
            return None
        client = min(able, key=lambda one: self._clients[one].taken)
        state = self._clients[client]
        item, cost = state.items.popleft()
        self._level = max(self._level, state.taken)
        state.taken += cost
        self._forget_if_empty(client)
        return item

    def charge(self, client: str, cost: float) -> None:
        """An item of this client cost so much more than was said."""
        if client in self._clients:
            self._clients[client].taken += cost

    def remove(self, client: str, item: T) -> None:
        """Drop an item, if it is still waiting."""
        if client in self._clients:
            state = self._clients[client]
            state.items = deque(entry for entry in state.items if entry[0] is not item)
            self._forget_if_empty(client)

    def pop_last_of_longest(self) -> T:
        """Drop the newest item of the client that has most waiting."""
        client = max(self._clients, key=lambda one: len(self._clients[one].items))
        item, _ = self._clients[client].items.pop()
        self._forget_if_empty(client)
        return item

    def _forget_if_empty(self, client: str) -> None:
        if not self._clients[client].items:
            del self._clients[client]


class Job:
    """One piece of work."""

    def __init__(self, lane: "_Lane", client: str, work: Work[Any], cost: float) -> None:
        self.lane = lane
        self.client = client
        self.cost = cost
        self.token = CancelToken()
        self.result: Future[Any] = Future()
        self._work = work

    def run(self) -> None:
        """Do the work, in the thread of a worker."""
        if self.result.set_running_or_notify_cancel():
            try:
                self.result.set_result(self._work(self.token))
            except BaseException as error:
                self.result.set_exception(error)

    def refuse(self, error: Exception) -> None:
        """End the job without running it."""
        if self.result.set_running_or_notify_cancel():
            self.result.set_exception(error)


class _Lane:
    """The waiting and running jobs of one kind. Not thread-safe but for `serve`.

    At most `workers` jobs run at once, `max_per_client` of them of one client.
    """

    def __init__(self, name: str, workers: int, max_per_client: int) -> None:
        self.workers = workers
        self.max_per_client = max_per_client
        self.pool = ThreadPoolExecutor(workers, name)
        self.waiting: FairQueue[Job] = FairQueue()
        self.running: Counter[str] = Counter()  # by client
        self.num_threads = 0  # that run jobs now

    def next_job(self) -> Job | None:
        """Return the job to run now, which counts as running from now on."""
        job = self.waiting.pop(lambda client: self.running[client] < self.max_per_client)
        if job is not None:
            self.running[job.client] += 1
        return job

    def ended(self, job: Job, seconds: float) -> None:
        """Note that a job ended after this time."""
        self.running -= Counter((job.client,))
        self.waiting.charge(job.client, max(0.0, seconds - job.cost))


class WorkQueue:
    """At most `workers` long jobs run at once, `max_per_client` of them of one client; and two short
    ones. In each lane `max_waiting` jobs wait.

    rest: after a job a thread rests so many times as long as the job took. Jobs that hold the GIL leave
    it to the event loop meanwhile.
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
        self._max_waiting = max_waiting
        self._rest = rest
        self._lock = threading.Lock()
        self._short = _Lane(f"{name}-short", _SHORT_WORKERS, _SHORT_WORKERS)
        self._long = _Lane(f"{name}-long", workers, max_per_client or workers)

    @property
    def num_waiting(self) -> int:
        return len(self._short.waiting) + len(self._long.waiting)

    @property
    def num_running(self) -> int:
        return self._short.running.total() + self._long.running.total()

    def submit(self, client: str, work: Work[Any], *, cost: float) -> Job:
        """Queue work. Raises `TooBusy` if too much of this client's work waits."""
        lane = self._short if cost <= SHORT_SECONDS else self._long
        job = Job(lane, client, work, cost)
        refused = None
        with self._lock:
            lane.waiting.push(client, job, cost)
            if len(lane.waiting) > self._max_waiting:
                refused, error = lane.waiting.pop_last_of_longest(), _too_many(lane)
            if lane.num_threads < lane.workers and len(lane.waiting):
                lane.num_threads += 1
                lane.pool.submit(self._serve, lane)
        if refused is job:
            raise error
        if refused is not None:
            refused.refuse(error)
        return job

    async def run(self, client: str, work: Work[T], *, cost: float = 0.001) -> T:
        """Return the result of the work. If this task is cancelled, so is the work."""
        job = self.submit(client, work, cost=cost)
        try:
            result: T = await asyncio.wrap_future(job.result)
        except asyncio.CancelledError:
            self.cancel(job)
            raise
        return result

    def cancel(self, job: Job) -> None:
        """Give a job up: a waiting one never starts, a running one is told to end."""
        with self._lock:
            job.lane.waiting.remove(job.client, job)
        job.token.cancel()

    def close(self) -> None:
        """Start nothing more."""
        for lane in (self._short, self._long):
            lane.pool.shutdown(wait=False, cancel_futures=True)

    def _serve(self, lane: _Lane) -> None:
        """Run jobs until none is left that may run."""
        while True:
            with self._lock:
                job = lane.next_job()
                if job is None:
                    lane.num_threads -= 1
                    return
            began = time.monotonic()
            job.run()
            seconds = time.monotonic() - began
            with self._lock:
                lane.ended(job, seconds)
            if self._rest:
                time.sleep(self._rest * seconds)


def _too_many(lane: _Lane) -> TooBusy:
    seconds = math.ceil(lane.waiting.cost / lane.workers)
    return TooBusy(
        "too many requests wait to be prepared; ask again later",
        retry_after=min(_MAX_RETRY_SECONDS, max(1, seconds)),
    )
