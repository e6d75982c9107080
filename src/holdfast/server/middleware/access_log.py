"""Every request leaves one line in the access log, however it ends. Routes add to it by `request.state.access`.

Refusals that no route saw coming are counted here as well.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("holdfast.access")
_LEFT = 499  # the client was gone before it was told anything; nobody gets this status


@dataclass
class AccessLogEntry:
    """What is known of a request; filled in as it becomes known, and what stays None is left out.

    route is the route's own pattern, or the path where there is none, without the query. mode is how the answer was made:
    certified, verified or none.
    """

    route: str
    status: int = 0
    request_id: str | None = None
    client: str | None = None  # the address alone
    deterministic: bool | None = None
    mode: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None
    finish_reason: str | None = None
    error: str | None = None  # its code

    def write(self) -> None:
        """Log it; what went wrong on our side is a warning."""
        fields = asdict(self)
        for name in ("first_token_ms", "total_ms"):
            if fields[name] is not None:
                fields[name] = round(fields[name], 1)
        level = logging.WARNING if self.status >= 500 else logging.INFO
        _log.log(level, "request", extra=fields)


class AccessLogMiddleware:
    """Stands outside of whatever answers, so that it knows what the client was told."""

    def __init__(self, app: ASGIApp, refused: Callable[[str], None] = lambda code: None) -> None:
        self.app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        client = scope.get("client")
        access = AccessLogEntry(
            scope["path"], _LEFT, scope["state"]["request_id"], client[0] if client else None
        )
        scope["state"]["access"] = access

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            if "route" in scope:
                access.route = scope["route"].path
            access.total_ms = 1e3 * (time.monotonic() - began)
            access.write()
            if access.status >= 400 and access.deterministic is None:  # a call counts its own errors
                self._refused(access.error or str(access.status))
