"""The events of one resumable stream, kept for a client that lost its connection.

    producer (the route)  ->  EventLog  ->  the newest reader: one connection

Events are numbered from 0. A reader gets every event from a number on. A newer reader takes the
stream over from an older one: after a lost connection, the server often sees the new connection
before it notices that the old one is dead.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

# A comment. No empty line follows it: after an event with an id, OpenAI's client would take that line
# for the end of an event without data, and fail.
_KEEP_ALIVE = b": keep-alive\n"
_QUIET_SECONDS = 15.0  # without an event, after which it is sent
_EVENT_BYTES = 64  # of memory beside an event's own bytes
_LOG_BYTES = 2048  # of memory beside a log's events


class TakenOver(Exception):
    """Another connection reads the stream now."""


class EventLog:
    """Used by one event loop.

    token is the beginning of its event ids. on_change is called whenever its size, its reader or its
    end changes. abandon ends the producer.
    """

    def __init__(self, token: str, on_change: "Callable[[EventLog], None]") -> None:
        self.token = token
        self.first = 0  # number of the first event that is kept
        self.num_bytes = _LOG_BYTES
        self.is_over = False  # no further event comes
        self.reader: LogReader | None = None
        self.abandon: Callable[[], object] = lambda: None
        self._on_change = on_change
        self._events: deque[bytes] = deque()

    @property
    def num_events(self) -> int:
        """Of all events so far, also of those that are not kept any more."""
        return self.first + len(self._events)

    def __getitem__(self, number: int) -> bytes:
        return self._events[number - self.first]

    def add(self, event: bytes) -> None:
        """Append an event. Comments are not kept: a reader writes its own."""
        if not event.startswith(b":"):
            numbered = b"id: %b-%d\n%b" % (self.token.encode(), self.num_events, event)
            self._events.append(numbered)
            self.num_bytes += len(numbered) + _EVENT_BYTES
            self._changed()

    def end(self) -> None:
        """No further event comes."""
        if not self.is_over:
            self.is_over = True
            self._changed()

    def attach(self, start: int) -> "LogReader":
        """A reader of the events from this number on. It takes over from another one."""
        assert self.first <= start <= self.num_events
        before, self.reader = self.reader, LogReader(self, start)
        if before is not None:
            before.wake()
        self._changed()
        return self.reader

    def detach(self, reader: "LogReader") -> None:
        """The reader's connection ended."""
        if self.reader is reader:
            self.reader = None
            self._changed()

    def forget_read(self) -> None:
        """Drop the events that the reader was given, to save memory."""
        while self._events and self.reader is not None and self.first < self.reader.next:
            self.num_bytes -= len(self._events.popleft()) + _EVENT_BYTES
            self.first += 1

    def _changed(self) -> None:
        if self.reader is not None:
            self.reader.wake()
        self._on_change(self)


class LogReader:
    """One connection that reads a log. next is the number of the next event."""

    def __init__(self, log: EventLog, start: int) -> None:
        self.next = start
        self._log = log
        self._updated = asyncio.Event()

    def wake(self) -> None:
        self._updated.set()

    def close(self) -> None:
        self._log.detach(self)

    async def events(self) -> AsyncIterator[bytes]:
        """The events until the stream is over, and comments while none comes. Raises `TakenOver`."""
        log = self._log
        while True:
            while log.reader is self and self.next < log.num_events:
                self.next += 1
                yield log[self.next - 1]
            if log.reader is not self:
                raise TakenOver
            if log.is_over:
                return
            if not await self._is_updated_soon():
                yield _KEEP_ALIVE

    async def _is_updated_soon(self) -> bool:
        """Whether something changes before a comment is due."""
        try:
            async with asyncio.timeout(_QUIET_SECONDS):
                await self._updated.wait()
        except TimeoutError:
            return False
        self._updated.clear()
        return True
