"""Streams step traces of the engine to inspector pages.

The engine traces only while a page is subscribed.

Each subscriber has a short queue of events. A subscriber that reads too slowly loses its queue and
gets a new snapshot: memory stays bounded, and the engine never waits for a page.

With several replicas a page follows one of them: the one it names, else the first. While
`MAX_SUBSCRIBERS` pages are open, another is refused.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from holdfast.engine.tracer import StepTrace
from holdfast.errors import NotReady, TooBusy
from holdfast.server.http.sse import KEEP_ALIVE, sse_event
from holdfast.server.inspector.view import EngineView, TokenText

MAX_SUBSCRIBERS = 8
MAX_QUEUED = 64  # steps
MAX_RESTARTS = 8
KEEP_ALIVE_SECONDS = 15.0

_RECONNECT = b"retry: 2000\n\n"


class Subscriber:
    """One page: the events it has not read yet, or a flag that it needs a snapshot first.

    holder is whose requests it shows; None is all. replica is the one that it follows; "" is the engine
    of a server without replicas.
    """

    def __init__(self, holder: str | None, replica: str = "") -> None:
        self.holder = holder
        self.replica = replica
        self.events: deque[bytes] = deque()
        self.restarts: deque[bytes] = deque(maxlen=MAX_RESTARTS)  # sent before the next snapshot
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
        self._replicas: tuple[str, ...] = ("",)
        self._views: dict[str, EngineView] = {}  # by replica, from its tracer's first trace on
        self._closed = False

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    def set_replicas(self, replicas: Sequence[str]) -> None:
        """The replicas that are there now. A page whose replica is gone follows the first one."""
        self._replicas = tuple(replicas) or ("",)
        self._views = {one: view for one, view in self._views.items() if one in self._replicas}
        for subscriber in self._subscribers:
            if subscriber.replica not in self._replicas:
                subscriber.replica = self._replicas[0]
                subscriber.reset()

    def publish(self, trace: StepTrace, replica: str = "") -> None:
        """Send a step to every page that follows the replica.

        A tracer's first trace is complete; traces before it are ignored.
        """
        if not self._subscribers:
            return
        if trace.is_first:
            self._views[replica] = EngineView(self._token_text)
        view = self._views.get(replica)
        if view is None:
            return
        event = view.update(trace)
        encoded: dict[str | None, bytes | None] = {None: sse_event(event, "step")}
        for subscriber in self._subscribers:
            if subscriber.replica != replica:
                continue
            if trace.is_first:
                subscriber.reset()
                continue
            holder = subscriber.holder
            if holder not in encoded:
                assert holder is not None
                part = view.own_part(event, holder)
                encoded[holder] = None if part is None else sse_event(part, "step")
            own = encoded[holder]
            if own is not None:
                subscriber.put(own)

    def engine_restarts(self, reason: str, num_requests: int) -> None:
        """The engine process died for this reason; so many requests continue in the next one. Pages mark
        it on their timelines, those of a holder without the number. Other replicas are followed on."""
        self._views.pop("", None)
        for subscriber in self._subscribers:
            mark = {"restart": reason, "requests": num_requests if subscriber.holder is None else 0}
            subscriber.restarts.append(sse_event(mark, "restart"))
            subscriber.reset()

    def close(self) -> None:
        """The server shuts down: every stream ends."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.wakeup.set()

    def require_capacity(self) -> None:
        """Raise `TooBusy` if one more page cannot subscribe."""
        if self._closed:
            raise NotReady("the server is going down", code="shutting_down")
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            message = f"{MAX_SUBSCRIBERS} inspector pages are open, which is the maximum; close one of them"
            raise TooBusy(message, code="too_many_watchers", retry_after=10)

    async def events(self, holder: str | None = None, replica: str = "") -> AsyncGenerator[bytes, None]:
        """Server-sent events for one page: a snapshot, then steps; a new snapshot where steps were lost.

        With a holder, only its requests are shown. replica is the one to follow, if it is there.
        """
        self.require_capacity()
        followed = replica if replica in self._replicas else self._replicas[0]
        subscriber = Subscriber(holder, followed)
        self._subscribers.append(subscriber)
        if len(self._subscribers) == 1:
            self._set_tracing(True)
        try:
            yield _RECONNECT
            while not self._closed:
                if subscriber.restarts:
                    yield subscriber.restarts.popleft()
                elif subscriber.needs_snapshot:
                    subscriber.needs_snapshot = False
                    view = self._views.get(subscriber.replica) or EngineView(self._token_text)
                    yield sse_event(view.snapshot(holder), "snapshot")
                elif subscriber.events:
                    yield subscriber.events.popleft()
                else:
                    subscriber.wakeup.clear()
                    try:
                        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                            await subscriber.wakeup.wait()
                    except TimeoutError:
                        yield KEEP_ALIVE
        finally:
            self._subscribers.remove(subscriber)
            if not self._subscribers:
                self._views = {}
                self._set_tracing(False)
