"""The outputs of one request, on their way from the engine's link to a `Call`."""

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.core.results import Delta, Result


class ResponseStream:
    """One request in the engine process, as the frontend holds it.

    The `EngineLink` fills it, a `Call` reads it. It sets the event `updated` whenever something
    arrives. Cancelling it frees the request's pages within a step; what still arrives for it is
    dropped.
    """

    def __init__(
        self, request_id: int, updated: asyncio.Event, cancel: Callable[["ResponseStream"], None]
    ) -> None:
        self.request_id = request_id
        self.seed: int | None = None  # known once the engine accepted the request
        self.queue_seconds: float | None = None  # known once the request left the queue
        self.deltas: deque[Delta] = deque()
        self.result: Result | None = None  # without its prompt and its choices
        self.error: Exception | None = None
        self._updated = updated
        self._cancel = cancel

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None

    def cancel(self, error: Exception) -> None:
        """End the request unless it is over; the reader gets this error."""
        if not self.is_over:
            self._cancel(self)
            self.fail(error)

    # Called by the link

    def accept(self, seed: int) -> None:
        self.seed = seed
        self._updated.set()

    def start(self, queue_seconds: float) -> None:
        self.queue_seconds = queue_seconds

    def add(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self._updated.set()

    def finish(self, result: Result) -> None:
        self.result = result
        self._updated.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._updated.set()
