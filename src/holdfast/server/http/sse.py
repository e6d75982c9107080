"""The two kinds of response body: a JSON object, and a stream of server-sent events (SSE).

JSON is encoded by msgspec: several times as fast as the standard library, and it refuses NaN.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.http.disconnect import run_until_disconnect

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients ignore
_encoder = msgspec.json.Encoder()
_LINE_ENDS = re.compile(b"\xc2\x85|\xe2\x80[\xa8\xa9]")  # U+0085, U+2028, U+2029 in UTF-8


_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_BODY_SEND = "body_send"
_LAST_BODY: Message = {"type": "http.response.body", "body": b"", "more_body": False}


def set_body_send(scope: Scope, send: Send) -> None:
    """Where the bodies of a stream are sent once its headers are. Called by the outermost middleware:
    all others look at the headers only, and to pass through them takes a tenth of a token's time."""
    scope.setdefault("state", {})[_BODY_SEND] = send


def _body_send(scope: Scope, send: Send) -> Send:
    found: Send = scope.get("state", {}).get(_BODY_SEND, send)
    return found


class JSONResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


def sse_event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event with JSON data.

    Unicode's line ends are escaped. JSON allows them in a text, but many clients split a stream at them.
    """
    head = b"data: " if name is None else b"event: %b\ndata: " % name.encode()
    encoded = _encoder.encode(data)
    if not encoded.isascii():
        encoded = _LINE_ENDS.sub(_escape, encoded)
    return head + encoded + b"\n\n"


def _escape(character: "re.Match[bytes]") -> bytes:
    return b"\\u%04x" % ord(character[0].decode())


def end_with_error(error: ApiError) -> tuple[bytes, ...]:
    """Return the end of a stream of OpenAI's chunks."""
    return sse_event(error.body()), DONE


EndStream = Callable[[ApiError], Sequence[bytes]]


class EventStreamResponse(Response):
    """Sends events, closes `resources`, however the stream ends, and then ends the response.

    Each item of `events` is one write, of one event or several. end_stream makes the events that end a
    stream with an error. A client that lets one write wait for `send_timeout` seconds counts as
    disconnected.

    Starlette's `StreamingResponse` cannot do two things this does. It stops as soon as the client
    disconnects, not at the next event. It reports an error after the first event as an event,
    because the status has already been sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        resources: AsyncExitStack,
        end_stream: EndStream = end_with_error,
        *,
        send_timeout: float,
    ) -> None:
        super().__init__(headers=_STREAM_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._end_stream = end_stream
        self._resources = resources
        self._send_timeout = send_timeout
        self._writing_since: float | None = None  # while a write waits for the client
        self._watch: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The end is sent after `resources` are closed: a client that sees it finds its place free."""
        try:
            async with self._resources:
                await run_until_disconnect(Request(scope, receive), self._send(scope, send))
        except ClientDisconnect:
            return
        except Exception as error:  # it was sent as an event
            if to_api_error(error).code == "internal_error":
                await _body_send(scope, send)(_LAST_BODY)
                raise
        await _body_send(scope, send)(_LAST_BODY)

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        send = _body_send(scope, send)
        time = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(None) as limit:
                self._watch_writes(limit)
                async for body in self._bodies():
                    self._writing_since = time()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self._writing_since = None
        except TimeoutError:
            if limit.expired():
                raise ClientDisconnect from None
            raise
        finally:
            if self._watch is not None:
                self._watch.cancel()

    async def _bodies(self) -> AsyncIterator[bytes]:
        """Yield the events. An error while they are made is written as events, too, and then raised."""
        try:
            async for event in self._events:
                yield event
        except Exception as error:
            yield b"".join(self._end_stream(to_api_error(error)))
            raise

    def _watch_writes(self, limit: asyncio.Timeout) -> None:
        """End the response once a write has waited for `send_timeout`. One timer looks at all writes: to set
        and cancel one for every token takes long."""
        loop = asyncio.get_running_loop()
        since = loop.time() if self._writing_since is None else self._writing_since
        if loop.time() - since >= self._send_timeout:
            limit.reschedule(since)
        else:
            self._watch = loop.call_at(since + self._send_timeout, self._watch_writes, limit)
