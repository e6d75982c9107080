"""Limits the number of choices in progress.

A request above the limit is refused with the time after which to retry.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.server.errors import ApiError

_MAX_RETRY_SECONDS = 60


class Admission:
    """Counts choices: a request for n choices of each of k prompts counts n k.

    max_running of them can be computed at once. Up to max_waiting more wait in the engine's queue.
    """

    def __init__(self, max_waiting: int) -> None:
        self.max_running = 1
        self.num_admitted = 0
        self.is_open = True
        self._max_waiting = max_waiting
        self._mean_seconds = 1.0  # of a request; a moving average

    @property
    def capacity(self) -> int:
        return self.max_running + self._max_waiting

    @contextmanager
    def admit(self, num_choices: int) -> Iterator[None]:
        """Hold room for so many choices, or refuse them."""
        self.require_open()
        if num_choices > self.capacity:
            raise ApiError(
                400,
                f"the request asks for {num_choices} answers at once; at most {self.capacity} are possible",
                param="n",
            )
        if self.num_admitted + num_choices > self.capacity:
            raise ApiError(
                429,
                "too many requests wait already; ask again later",
                code="too_many_requests",
                headers={"Retry-After": str(self.retry_after())},
            )
        self.num_admitted += num_choices
        try:
            yield
        finally:
            self.num_admitted -= num_choices

    def require_open(self) -> None:
        """Refuse every new request once the server shuts down."""
        if not self.is_open:
            raise ApiError(
                503,
                "the server is going down",
                code="shutting_down",
                headers={"Retry-After": "5", "Connection": "close"},
            )

    def observe(self, seconds: float) -> None:
        """A request took so long."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def retry_after(self) -> int:
        """Estimated seconds until there is room: the time to answer the waiting requests."""
        num_waiting = max(1, self.num_admitted - self.max_running)
        return min(_MAX_RETRY_SECONDS, max(1, math.ceil(self._mean_seconds * num_waiting / self.max_running)))
