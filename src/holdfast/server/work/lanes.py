"""The work queues of the frontend: one for short work, one for long.

Short work never waits for long work, and long work of one client leaves a thread for the others.
Most of it releases the GIL (tokenising, waiting for a sandbox), so that the event loop goes on.
"""

import os
from typing import TypeVar

from holdfast.server.work.work_queue import Work, WorkQueue

_SHORT_SECONDS = 0.02
_SECONDS_PER_BYTE = 1e-6  # tokenising, roughly
_BASE_SECONDS = 0.001
_SHORT_WORKERS = 2

T = TypeVar("T")


class WorkLanes:
    """Runs work for clients. The size of its input, in bytes or characters, decides the lane."""

    def __init__(self, max_waiting: int = 256) -> None:
        workers = max(2, (os.cpu_count() or 1) // 2)
        self.short = WorkQueue("holdfast-short", workers=_SHORT_WORKERS, max_waiting=max_waiting)
        self.long = WorkQueue(
            "holdfast-long", workers=workers, max_per_client=workers // 2, max_waiting=max_waiting
        )

    async def run(self, client: str, work: Work[T], *, size: int) -> T:
        """The result of the work. If this task is cancelled, so is the work."""
        cost = _BASE_SECONDS + size * _SECONDS_PER_BYTE
        lane = self.short if cost <= _SHORT_SECONDS else self.long
        return await lane.run(client, work, cost=cost)

    def close(self) -> None:
        self.short.close()
        self.long.close()
