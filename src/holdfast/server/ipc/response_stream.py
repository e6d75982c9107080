"""One request the engine process works on, as the front holds it. Filled by the engine's link, emptied by a `Call`.

A ticket that is left frees its pages within a step; what still comes for it is thrown away.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.server.ipc.messages import Piece, RequestResult


class ResponseStream:
    """Rings the bell whenever there is news."""

    def __init__(self, number: int, bell: asyncio.Event, cancel: Callable[["ResponseStream"], None]) -> None:
        self.number = number
        self.seed: int | None = None  # once the engine took it
        self.queue_seconds: float | None = None  # once it left the queue
        self.pieces: deque[Piece] = deque()
        self.outcome: RequestResult | None = None
        self.error: Exception | None = None
        self._bell = bell
        self._cancel = cancel

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.error is not None

    def leave(self, error: Exception) -> None:
        """Nobody waits for this any more, and why."""
        if not self.is_over:
            self._cancel(self)
            self.fail(error)

    # Called by the link

    def accept(self, seed: int) -> None:
        self.seed = seed
        self._bell.set()

    def begin(self, queue_seconds: float) -> None:
        self.queue_seconds = queue_seconds

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self._bell.set()

    def close(self, outcome: RequestResult) -> None:
        self.outcome = outcome
        self._bell.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._bell.set()
