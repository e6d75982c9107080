"""How many answers may be under way at once. Who comes when all places are taken is told when to come back.

A place is one answer: a request for n answers to k prompts takes n k of them.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.server.errors import ApiError

_LONGEST_WAIT = 60


class Admission:
    """Counts places. num_running of them can be computed at once, the others wait in the engine's queue."""

    def __init__(self, max_waiting: int) -> None:
        self.num_running = 1
        self.num_taken = 0
        self.is_open = True
        self._max_waiting = max_waiting
        self._usual_seconds = 1.0  # a moving average

    @property
    def capacity(self) -> int:
        return self.num_running + self._max_waiting

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Take so many places, or be refused."""
        self.require_open()
        if count > self.capacity:
            raise ApiError(
                400,
                f"the request asks for {count} answers at once; at most {self.capacity} are possible",
                param="n",
            )
        if self.num_taken + count > self.capacity:
            raise ApiError(
                429,
                "too many requests wait already; ask again later",
                code="too_many_requests",
                headers={"Retry-After": str(self.seconds_to_wait())},
            )
        self.num_taken += count
        try:
            yield
        finally:
            self.num_taken -= count

    def require_open(self) -> None:
        """Nobody new is let in once the server is going down."""
        if not self.is_open:
            raise ApiError(
                503,
                "the server is going down",
                code="shutting_down",
                headers={"Retry-After": "5", "Connection": "close"},
            )

    def note(self, seconds: float) -> None:
        """An answer took so long."""
        self._usual_seconds += 0.1 * (seconds - self._usual_seconds)

    def seconds_to_wait(self) -> int:
        """About when a place will be free: as long as it takes to answer those who wait."""
        waiting = max(1, self.num_taken - self.num_running)
        return min(_LONGEST_WAIT, max(1, math.ceil(self._usual_seconds * waiting / self.num_running)))
