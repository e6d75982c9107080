"""Limits on request bodies: JSON only, bounded size and time, and bounded memory for all bodies
together.

Headers are checked before a byte is read; bytes are counted while the route reads them. A body that
no route reads is not read here either. Starlette has no body limit.
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
_MAX_FULL_BODIES = 32  # bodies of maximum size in memory at the same time


class BodyLimitMiddleware:
    """The innermost layer: unauthorized requests are refused before their body is read."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._max_bytes = config.max_body_bytes
        self._timeout = config.body_timeout
        self._num_bytes = 0  # of all current requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._check_headers(scope["method"], Headers(scope=scope))
        body = _Body(self, receive)
        try:
            await self.app(scope, body.receive, send)
        finally:
            self._num_bytes -= body.num_bytes

    def _check_headers(self, method: str, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            return
        if int(length) > self._max_bytes:
            raise self.too_large()
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(
                415,
                "The body must not be compressed; send it without Content-Encoding.",
                code="unsupported_content_encoding",
            )
        if method == "POST" and not _JSON.fullmatch(headers.get("content-type", "").strip()):
            message = "The body must be JSON in UTF-8; send it with Content-Type: application/json."
            raise ApiError(415, message, code="unsupported_media_type")

    def add(self, body: "_Body", num_bytes: int) -> None:
        """Count bytes that arrived."""
        body.num_bytes += num_bytes
        self._num_bytes += num_bytes
        if body.num_bytes > self._max_bytes:
            raise self.too_large()
        if self._num_bytes > _MAX_FULL_BODIES * self._max_bytes:
            message = "The server is receiving too many large requests; retry later."
            raise ApiError(503, message, code="too_many_bodies", headers={"Retry-After": "5"})

    def too_large(self) -> ApiError:
        return ApiError(
            413, f"The body is too large: at most {self._max_bytes} bytes are allowed.", code="body_too_large"
        )

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout


class _Body:
    """One request's body while it is received."""

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
            raise ApiError(408, "The request's body did not arrive in time.", code="body_timeout") from None
        self._is_complete = not message.get("more_body", False)
        self._limits.add(self, len(message.get("body", b"")))
        return message
