"""Headers of every response: X-Request-Id, no caching, no content sniffing.

The request id is the client's own X-Request-Id if it is safe to print, else a new one; some bodies
may name one, too. It is stored
as `scope["state"]["request_id"]`, and log records of the request contain it.
"""

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.errors import is_anthropic
from holdfast.server.http.responses import set_body_send
from holdfast.server.telemetry.logs import current_request_id

_SAFE_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")


class ResponseHeadersMiddleware:
    """Outside of every layer that responds."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _given_id(scope) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        set_body_send(scope, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = scope["state"]["request_id"]
                if is_anthropic(scope["path"]):
                    headers["Request-Id"] = headers["X-Request-Id"]  # where Anthropic's clients look for it
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        token = current_request_id.set(request_id)
        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            current_request_id.reset(token)


def use_request_id(request: Request, request_id: str | None) -> None:
    """Take the request id from the body, unless a header has given one. It must be safe to print."""
    if request_id is not None and _given_id(request.scope) is None:
        request.state.request_id = request.state.access.request_id = request_id
        current_request_id.set(request_id)


def _given_id(scope: Scope) -> str | None:
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    return str(given[0], "ascii") if len(given) == 1 and _SAFE_ID.fullmatch(given[0]) else None
