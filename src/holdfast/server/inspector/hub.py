"""Between the engine's traces and the pages that watch: nothing is asked of the engine while nobody does.

Each watcher has a short queue of events. One that reads too slowly loses them and gets the whole view again: memory stays
bounded, and the engine never waits for a page.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from holdfast.engine.tracer import StepTrace
from holdfast.server.errors import ApiError
from holdfast.server.inspector.view import TokenText, View

MAX_WATCHERS = 8
MAX_QUEUED = 64  # steps a watcher may be behind
BEAT_SECONDS = 15.0  # so often something is sent, so that a watcher who left is noticed

_BEGIN = b"retry: 2000\n\n"
_BEAT = b": still here\n\n"


class Subscriber:
    """One page: the events it has not read yet, or that it has to begin anew."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.begins_anew = True
        self.bell = asyncio.Event()

    def put(self, frame: bytes) -> None:
        if not self.begins_anew:
            self.frames.append(frame)
        if len(self.frames) > MAX_QUEUED:
            self.begin_anew()
        self.bell.set()

    def begin_anew(self) -> None:
        self.frames.clear()
        self.begins_anew = True
        self.bell.set()


class Hub:
    """Lives in the server's event loop. `watch` is called when the first watcher comes and when the last one leaves."""

    def __init__(self, token_text: TokenText, watch: Callable[[bool], None]) -> None:
        self._token_text = token_text
        self._watch = watch
        self._watchers: list[Subscriber] = []
        self._view: View | None = None  # none until a tracer has told everything
        self._closed = False

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    def take(self, trace: StepTrace) -> None:
        """A step was told. A tracer's first trace stands for all that was before it; without one the others say nothing."""
        if not self._watchers:
            return
        if trace.is_first:
            self._view = View(self._token_text)
        if self._view is None:
            return
        frame = _frame("step", self._view.take(trace))
        for watcher in self._watchers:
            if trace.is_first:
                watcher.begin_anew()
            else:
                watcher.put(frame)

    def forget(self) -> None:
        """The engine is gone, and every request with it."""
        self._view = None
        for watcher in self._watchers:
            watcher.begin_anew()

    def close(self) -> None:
        """The server goes down: every stream ends."""
        self._closed = True
        for watcher in self._watchers:
            watcher.bell.set()

    def require_room(self) -> None:
        """Refuse a watcher too many."""
        if self._closed:
            raise ApiError(
                503, "the server is going down", code="shutting_down", headers={"Retry-After": "5"}
            )
        if len(self._watchers) >= MAX_WATCHERS:
            raise ApiError(
                429,
                f"{MAX_WATCHERS} pages watch already; close one of them",
                code="too_many_watchers",
                headers={"Retry-After": "10"},
            )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one watcher: a snapshot, then steps; a snapshot again where steps were lost."""
        self.require_room()
        watcher = Subscriber()
        self._join(watcher)
        try:
            yield _BEGIN
            while not self._closed:
                if watcher.begins_anew:
                    watcher.begins_anew = False
                    yield _frame("snapshot", (self._view or View(self._token_text)).snapshot())
                elif watcher.frames:
                    yield watcher.frames.popleft()
                else:
                    watcher.bell.clear()
                    if not await _rings(watcher.bell):
                        yield _BEAT
        finally:
            self._leave(watcher)

    def _join(self, watcher: Subscriber) -> None:
        self._watchers.append(watcher)
        if len(self._watchers) == 1:
            self._watch(True)

    def _leave(self, watcher: Subscriber) -> None:
        self._watchers.remove(watcher)
        if not self._watchers:
            self._view = None
            self._watch(False)


async def _rings(bell: asyncio.Event) -> bool:
    """Whether it rings before the next beat."""
    try:
        async with asyncio.timeout(BEAT_SECONDS):
            await bell.wait()
    except TimeoutError:
        return False
    return True


def _frame(event: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(data))
