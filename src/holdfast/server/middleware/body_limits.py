"""Limits on request bodies: JSON only (an uploaded file is a form), bounded size and time, and bounded memory for
all bodies together.

Headers are checked before a byte is read; bytes are counted while the route reads them. A body that
no route reads is not read here either. Starlette has no body limit.

Time is limited by rate: a body may take `body_timeout`, and longer while it arrives at
`MIN_BYTES_PER_SECOND` or more, but no pause may last `body_timeout`.
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
_FORM = re.compile(r"multipart/form-data\s*;.+", re.IGNORECASE | re.ASCII)
_UPLOADS = frozenset({"/v1/files"})
MAX_UPLOAD_BYTES = 200 << 20  # OpenAI's limit of a file
_MAX_FULL_BODIES = 32  # bodies of maximum size in memory at the same time
_SMALL_BODY = 64 << 10  # is accepted although large bodies take all of that
MIN_BYTES_PER_SECOND = 16 << 10


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
        is_upload = scope["method"] == "POST" and scope["path"] in _UPLOADS
        max_bytes = MAX_UPLOAD_BYTES if is_upload else self._max_bytes
        self._check_headers(scope["method"], Headers(scope=scope), max_bytes, _FORM if is_upload else _JSON)
        time = asyncio.get_running_loop().time
        began, num_bytes, is_complete = time(), 0, False

        async def receive_in_time() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:
                return await receive()
            deadline = began + self._timeout + num_bytes / MIN_BYTES_PER_SECOND
            try:
                async with asyncio.timeout_at(min(deadline, time() + self._timeout)):
                    message = await receive()
            except TimeoutError:
                slow = "The request's body did not arrive in time."
                raise ApiError(408, slow, code="body_timeout", headers={"Connection": "close"}) from None
            is_complete = not message.get("more_body", False)
            num_new = len(message.get("body", b""))
            num_bytes += num_new
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            if is_upload:  # it goes to a file
                return message
            self._num_bytes += num_new
            if num_bytes > _SMALL_BODY and self._num_bytes > _MAX_FULL_BODIES * self._max_bytes:
                many = "The server is receiving too many large requests; retry later."
                raise ApiError(503, many, code="too_many_bodies", headers={"Retry-After": "5"})
            return message

        try:
            await self.app(scope, receive_in_time, send)
        finally:
            self._num_bytes -= 0 if is_upload else num_bytes

    def _check_headers(self, method: str, headers: Headers, max_bytes: int, kind: "re.Pattern[str]") -> None:
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            return
        if int(length) > max_bytes:
            raise _too_large(max_bytes)
        if "upgrade" in headers:  # uvicorn does not read it
            message = "A body cannot follow the offer of an upgrade; send it without Upgrade, as HTTP/1.1."
            raise ApiError(400, message, code="bad_request", headers={"Connection": "close"})
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(
                415,
                "The body must not be compressed; send it without Content-Encoding.",
                code="unsupported_content_encoding",
            )
        if method == "POST" and not kind.fullmatch(headers.get("content-type", "").strip()):
            message = "The body must be JSON in UTF-8; send it with Content-Type: application/json."
            if kind is _FORM:
                message = (
                    "The body must be a form with a file; send it with Content-Type: multipart/form-data."
                )
            raise ApiError(415, message, code="unsupported_media_type")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"The body is too large: at most {max_bytes} bytes are allowed.", code="body_too_large"
    )
