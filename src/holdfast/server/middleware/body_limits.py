"""What may come in as a body: JSON, of bounded size, in bounded time, and all bodies together in bounded memory.

What the headers say is judged before a byte is read; what comes is counted while a route reads it. A body nobody reads is not
read here either.
"""

import asyncio
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError

_JSON = re.compile(
    r'application/(?:json|[\w.+-]+\+json)\s*(?:;\s*charset\s*=\s*"?utf-?8"?\s*)?;?', re.IGNORECASE | re.ASCII
)
_MOST_AT_ONCE = 32  # bodies of full size that may be held at the same time


class BodyLimitMiddleware:
    """The innermost layer: those who may not ask are refused before their body is looked at."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._most = config.max_body_bytes
        self._seconds = config.body_timeout
        self._num_held = 0  # bytes of requests under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._judge(scope["method"], Headers(scope=scope))
        body = _Body(self, receive)
        try:
            await self.app(scope, body.receive, send)
        finally:
            self._num_held -= body.num_bytes

    def _judge(self, method: str, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            return
        if int(length) > self._most:
            raise self.too_large()
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "The body must not be compressed.", code="unsupported_content_encoding")
        if method == "POST" and not _JSON.fullmatch(headers.get("content-type", "").strip()):
            message = "The body must be JSON in UTF-8: send it as Content-Type: application/json."
            raise ApiError(415, message, code="unsupported_media_type")

    def hold(self, body: "_Body", num_bytes: int) -> None:
        """Count what has come."""
        body.num_bytes += num_bytes
        self._num_held += num_bytes
        if body.num_bytes > self._most:
            raise self.too_large()
        if self._num_held > _MOST_AT_ONCE * self._most:
            message = "Too many large requests at once; ask again later."
            raise ApiError(503, message, code="too_many_bodies", headers={"Retry-After": "5"})

    def too_large(self) -> ApiError:
        return ApiError(
            413, f"The body is too large: at most {self._most} bytes are allowed.", code="body_too_large"
        )

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._seconds


class _Body:
    """One request's body as it comes in."""

    def __init__(self, limits: BodyLimitMiddleware, receive: Receive) -> None:
        self.num_bytes = 0
        self._limits = limits
        self._receive = receive
        self._is_complete = False
        self._deadline = limits.deadline()

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, "The request's body took too long.", code="body_timeout") from None
        self._is_complete = not message.get("more_body", False)
        self._limits.hold(self, len(message.get("body", b"")))
        return message
