"""The responses of resumable streams.

The first response runs the route's event stream into an `EventLog` and sends what is in the log. If
its client disconnects, the stream goes on until the answer is complete, or the log is dropped
because no client came back. A client that does gets a `ResumedStreamResponse` of the same log.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.server.errors import ApiError, is_anthropic
from holdfast.server.http.disconnect import race_disconnect
from holdfast.server.http.responses import (
    LAST_BODY,
    STREAM_HEADERS,
    EndStream,
    end_with_error,
    end_with_errors,
    sse_event,
)
from holdfast.server.streams.event_log import EventLog, LogReader, TakenOver

_TAKEN_OVER = ApiError(
    409, "another connection resumed this stream and gets the rest of it", code="stream_taken_over"
)


class _LogResponse(Response):
    """Sends the events of a log."""

    media_type = "text/event-stream"

    def __init__(self) -> None:
        super().__init__(headers=STREAM_HEADERS)
        del self.headers["content-length"]

    async def _send_log(self, reader: LogReader, scope: Scope, receive: Receive, send: Send) -> None:
        """Until the stream is over, the client disconnects, or another one takes the stream over."""
        try:
            with contextlib.suppress(ClientDisconnect):
                await race_disconnect(receive, self._send(reader, scope, send))
        finally:
            reader.close()

    async def _send(self, reader: LogReader, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in reader.events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except TakenOver:
            body = _TAKEN_OVER.body_for(scope["path"], scope["state"].get("request_id"))
            event = sse_event(body, "error" if is_anthropic(scope["path"]) else None)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send(LAST_BODY)


class ResumedStreamResponse(_LogResponse):
    """Sends the rest of a stream. attach raises an `ApiError` if there is none."""

    def __init__(self, attach: Callable[[], LogReader]) -> None:
        super().__init__()
        self._attach = attach

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._send_log(self._attach(), scope, receive, send)


class ResumableStreamResponse(_LogResponse):
    """An `EventStreamResponse` whose stream survives its connection.

    open_log makes the log. `resources` are closed when the answer is complete or was given up, also
    if the client still reads.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        resources: AsyncExitStack,
        open_log: Callable[[], tuple[EventLog, LogReader]],
        end_stream: EndStream = end_with_error,
    ) -> None:
        super().__init__()
        self._events = end_with_errors(events, end_stream)
        self._resources = resources
        self._open_log = open_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        log, reader = self._open_log()
        sending = asyncio.create_task(self._send_log(reader, scope, receive, send))
        try:
            try:
                with contextlib.suppress(ApiError, ClientDisconnect):  # an ApiError was sent as an event
                    async with self._resources:
                        await self._fill(log)
            finally:
                await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _fill(self, log: EventLog) -> None:
        """Run the stream into its log. Raises `ClientDisconnect` if it is abandoned."""
        producing = asyncio.create_task(self._produce(log))
        log.abandon = producing.cancel
        try:
            await asyncio.wait((producing,))
        finally:
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
            log.end()
        if producing.cancelled():
            raise ClientDisconnect
        producing.result()

    async def _produce(self, log: EventLog) -> None:
        async for event in self._events:
            log.add(event)
