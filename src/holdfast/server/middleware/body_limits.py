"""Limits on request bodies: JSON only, bounded size and time, and bounded memory for all bodies
together.

Headers are checked before a byte is read; bytes are counted while the route reads them. A body that
no route reads is not read here either. Starlette has no body limit.

Time is limited by rate: a body may take `body_timeout`, and longer while it arrives at
`MIN_BYTES_PER_SECOND` or more, but no pause may last `body_timeout`.

Memory is shared between tenants: a tenant may hold as many bytes as are free, so one alone holds at
most half, and there is always room for another. Above that the slowest of its bodies that still
arrive gives way.
"""

import asyncio
import re
from collections import Counter, defaultdict

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.http.connections import assign_connection
from holdfast.server.tenants.tenant import tenant_of

_JSON = re.compile(
    r'application/(?:json|[\w.+-]+\+json)\s*(?:;\s*charset\s*=\s*"?utf-?8"?\s*)?;?', re.IGNORECASE | re.ASCII
)
_MAX_FULL_BODIES = 32  # bodies of maximum size in memory at the same time
MIN_BYTES_PER_SECOND = 16 << 10


class BodyLimitMiddleware:
    """The innermost layer: unauthorized requests are refused before their body is read."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self._max_bytes = config.max_body_bytes
        self._timeout = config.body_timeout
        self._num_bytes = 0  # of all current requests
        self._num_bytes_by_tenant: Counter[str] = Counter()
        self._arriving: defaultdict[str, dict[_Body, None]] = defaultdict(dict)  # incomplete bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        tenant = tenant_of(scope).id
        assign_connection(scope, tenant)
        self._check_headers(scope["method"], Headers(scope=scope))
        body = _Body(self, tenant, receive, self._timeout)
        try:
            await self.app(scope, body.receive, send)
        finally:
            self.release(body)

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

    def begin(self, body: "_Body") -> None:
        """A route has begun to read a body."""
        self._arriving[body.tenant][body] = None

    def add(self, body: "_Body", num_bytes: int) -> None:
        """Count bytes that arrived."""
        body.num_bytes += num_bytes
        self._num_bytes += num_bytes
        self._num_bytes_by_tenant[body.tenant] += num_bytes
        if body.num_bytes > self._max_bytes:
            raise self.too_large()
        while self._num_bytes_by_tenant[body.tenant] > _MAX_FULL_BODIES * self._max_bytes - self._num_bytes:
            others = [one for one in self._arriving[body.tenant] if one is not body and one.num_bytes]
            if not others:
                raise _too_many()
            slowest = min(others, key=_Body.rate)
            slowest.refuse(_too_many())
            self.release(slowest)

    def end(self, body: "_Body") -> None:
        """The body is complete; its bytes are held until `release`."""
        arriving = self._arriving[body.tenant]
        arriving.pop(body, None)
        if not arriving:
            del self._arriving[body.tenant]

    def release(self, body: "_Body") -> None:
        """The body's memory is free."""
        self.end(body)
        self._num_bytes -= body.num_bytes
        self._num_bytes_by_tenant[body.tenant] -= body.num_bytes
        if not self._num_bytes_by_tenant[body.tenant]:
            del self._num_bytes_by_tenant[body.tenant]
        body.num_bytes = 0

    def too_large(self) -> ApiError:
        return ApiError(
            413, f"The body is too large: at most {self._max_bytes} bytes are allowed.", code="body_too_large"
        )


class _Body:
    """One request's body while it is received."""

    def __init__(self, limits: BodyLimitMiddleware, tenant: str, receive: Receive, timeout: float) -> None:
        self.tenant = tenant
        self.num_bytes = 0
        self._limits = limits
        self._receive = receive
        self._timeout = timeout
        self._time = asyncio.get_running_loop().time
        self._began = self._time()
        self._has_begun = False
        self._is_complete = False
        self._error: ApiError | None = None
        self._waiting: asyncio.Timeout | None = None

    def rate(self) -> float:
        """Bytes per second."""
        return self.num_bytes / max(self._time() - self._began, 1e-3)

    def refuse(self, error: ApiError) -> None:
        """End the request with this error."""
        self._error = error
        if self._waiting is not None:
            self._waiting.reschedule(self._time())

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        if not self._has_begun:
            self._has_begun = True
            self._limits.begin(self)
        message = await self._receive_in_time()
        if not message.get("more_body", False):
            self._is_complete = True
            self._limits.end(self)
        self._limits.add(self, len(message.get("body", b"")))
        return message

    async def _receive_in_time(self) -> Message:
        if self._error is not None:
            raise self._error
        deadline = self._began + self._timeout + self.num_bytes / MIN_BYTES_PER_SECOND
        try:
            async with asyncio.timeout_at(min(deadline, self._time() + self._timeout)) as self._waiting:
                return await self._receive()
        except TimeoutError:
            raise self._error or _too_slow() from None
        finally:
            self._waiting = None


def _too_slow() -> ApiError:
    return ApiError(408, "The request's body did not arrive in time.", code="body_timeout")


def _too_many() -> ApiError:
    message = "The server is receiving too many large requests; retry later."
    return ApiError(503, message, code="too_many_bodies", headers={"Retry-After": "5"})
