"""A streamed answer: server-sent events, for as long as the client stays.

Whoever leaves is noticed at once, not at the next token. An error behind the first event can only be told as an event.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.server.errors import ApiError, internal_error
from holdfast.server.http.disconnect import ClientLeft, has_left

DONE = b"data: [DONE]\n\n"
QUIET = b": still here\n\n"
_encoder = msgspec.json.Encoder()


def event(content: Any) -> bytes:
    """One event with JSON in it."""
    return b"data: " + _encoder.encode(content) + b"\n\n"


class EventStream(Response):
    """Sends events, then lets go of what they came from, whichever way it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], owned: AsyncExitStack) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._owned = owned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ApiError, ClientLeft):  # told already, or nobody there to tell
            async with self._owned:
                await self._run(receive, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(has_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientLeft
            sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait((sending, leaving))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for one in self._events:
                await send({"type": "http.response.body", "body": one, "more_body": True})
        except ApiError as error:
            await send(_last(event(error.body()) + DONE))
            raise
        except Exception:
            await send(_last(event(internal_error().body()) + DONE))
            raise
        await send(_last(b""))


def _last(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": False}
