"""Streams step traces of the engine to inspector pages.

The engine traces only while a page is subscribed.

Each subscriber has a short queue of events. A subscriber that reads too slowly loses its queue and
gets a new snapshot: memory stays bounded, and the engine never waits for a page.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from holdfast.engine.tracer import StepTrace
from holdfast.server.errors import ApiError
from holdfast.server.http.responses import KEEP_ALIVE, sse_event
from holdfast.server.inspector.view import EngineView, TokenText

MAX_SUBSCRIBERS = 8
MAX_QUEUED = 64  # steps
KEEP_ALIVE_SECONDS = 15.0

_RECONNECT = b"retry: 2000\n\n"


class Subscriber:
    """One page: the events it has not read yet, or a flag that it needs a snapshot first."""

    def __init__(self) -> None:
        self.events: deque[bytes] = deque()
        self.needs_snapshot = True
        self.wakeup = asyncio.Event()

    def put(self, event: bytes) -> None:
        if not self.needs_snapshot:
            self.events.append(event)
        if len(self.events) > MAX_QUEUED:
            self.reset()
        self.wakeup.set()

    def reset(self) -> None:
        """Drop the queue; the next event is a snapshot."""
        self.events.clear()
        self.needs_snapshot = True
        self.wakeup.set()


class Hub:
    """Used by the server's event loop only.

    `set_tracing` is called for the first subscriber and after the last.
    """

    def __init__(self, token_text: TokenText, set_tracing: Callable[[bool], None]) -> None:
        self._token_text = token_text
        self._set_tracing = set_tracing
        self._subscribers: list[Subscriber] = []
        self._view: EngineView | None = None  # None until a tracer's first trace
        self._closed = False

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    def publish(self, trace: StepTrace) -> None:
        """Send a step to every page.

        A tracer's first trace is complete; traces before it are ignored.
        """
        if not self._subscribers:
            return
        if trace.is_first:
            self._view = EngineView(self._token_text)
        if self._view is None:
            return
        event = sse_event(self._view.update(trace), "step")
        for subscriber in self._subscribers:
            if trace.is_first:
                subscriber.reset()
            else:
                subscriber.put(event)

    def reset(self) -> None:
        """The engine process died, and all its requests with it."""
        self._view = None
        for subscriber in self._subscribers:
            subscriber.reset()

    def close(self) -> None:
        """The server shuts down: every stream ends."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.wakeup.set()

    def require_capacity(self) -> None:
        """Raise an `ApiError` if one more page cannot subscribe."""
        if self._closed:
            raise ApiError(
                503, "The server is shutting down.", code="shutting_down", headers={"Retry-After": "5"}
            )
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise ApiError(
                429,
                f"{MAX_SUBSCRIBERS} inspector pages are open, which is the maximum; close one of them.",
                code="too_many_watchers",
                headers={"Retry-After": "10"},
            )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one page: a snapshot, then steps; a new snapshot where steps were
        lost.
        """
        self.require_capacity()
        subscriber = Subscriber()
        self._add(subscriber)
        try:
            yield _RECONNECT
            while not self._closed:
                if subscriber.needs_snapshot:
                    subscriber.needs_snapshot = False
                    yield sse_event((self._view or EngineView(self._token_text)).snapshot(), "snapshot")
                elif subscriber.events:
                    yield subscriber.events.popleft()
                else:
                    subscriber.wakeup.clear()
                    if not await _wait(subscriber.wakeup):
                        yield KEEP_ALIVE
        finally:
            self._remove(subscriber)

    def _add(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)
        if len(self._subscribers) == 1:
            self._set_tracing(True)

    def _remove(self, subscriber: Subscriber) -> None:
        self._subscribers.remove(subscriber)
        if not self._subscribers:
            self._view = None
            self._set_tracing(False)


async def _wait(wakeup: asyncio.Event) -> bool:
    """Whether the event is set before the next keep-alive is due."""
    try:
        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
            await wakeup.wait()
    except TimeoutError:
        return False
    return True
