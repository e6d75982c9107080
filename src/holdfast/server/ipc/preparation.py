"""Prepares requests in the engine process, off the engine's loop and fairly between tenants.

    no grammar, no bad words   in the reader's thread
    known ones                 in a queue of its own, so that they never wait for unknown ones
    unknown ones               compiled, two at a time and one of each tenant

A request that is aborted while it waits is never prepared. While it is prepared, its grammar is
given up, unless another request waits for the same one.
"""

import threading
from collections.abc import Callable

from holdfast.core.cancel_token import CancelToken
from holdfast.core.request import Request
from holdfast.engine.engine import Engine
from holdfast.server.work.work_queue import Job, WorkQueue
from holdfast.structured.compiler import NUM_WORKERS

_QUICK_SECONDS = 0.001
_COMPILE_SECONDS = 0.05
_NO_LIMIT = 1 << 30  # the frontend admits no more requests than it has places for

Prepare = Callable[[Request, CancelToken], None]


class Preparation:
    """Calls `prepare` once for each request in one of the threads, unless it is cancelled before."""

    def __init__(self, engine: Engine, prepare: Prepare) -> None:
        self._engine = engine
        self._prepare = prepare
        self._quick = WorkQueue("holdfast-prepare", workers=2, max_waiting=_NO_LIMIT)
        self._slow = WorkQueue(
            "holdfast-compile", workers=NUM_WORKERS, max_per_client=NUM_WORKERS - 1, max_waiting=_NO_LIMIT
        )
        self._lock = threading.Lock()
        self._jobs: dict[int, tuple[WorkQueue, Job]] = {}  # by request id

    def start(self, request: Request) -> None:
        """Prepare a request, now or in a thread."""
        if request.params.structured is None and not request.params.bad_words:
            self._prepare(request, CancelToken())
            return
        self._queue(self._quick, request, self._begin, _QUICK_SECONDS, CancelToken())

    def cancel(self, request_id: int) -> bool:
        """Give a request up. True: `prepare` was not called for it and never will be."""
        with self._lock:
            queue, job = self._jobs.pop(request_id, (None, None))
            return queue is not None and job is not None and queue.cancel(job)

    def close(self) -> None:
        """Prepare nothing more."""
        self._quick.close()
        self._slow.close()

    def _begin(self, request: Request, token: CancelToken) -> None:
        """Prepare a request at once, or queue what takes time."""
        if self._engine.prepares_quickly(request.params):
            self._finish(request, token)
        else:
            self._queue(self._slow, request, self._finish, _COMPILE_SECONDS, token)

    def _queue(
        self, queue: WorkQueue, request: Request, work: Prepare, cost: float, token: CancelToken
    ) -> None:
        with self._lock:  # `cancel` finds the job, or the token is cancelled already
            if token.is_cancelled:
                self._prepare(request, token)
                return
            job = queue.submit(request.tenant, lambda token: work(request, token), cost=cost)
            self._jobs[request.request_id] = queue, job

    def _finish(self, request: Request, token: CancelToken) -> None:
        try:
            self._prepare(request, token)
        finally:
            with self._lock:
                self._jobs.pop(request.request_id, None)
