"""Every request leaves one line in the access log, however it ends. Routes add to it by `request.state.access`.

Refusals that no route saw coming are counted here as well.
"""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.telemetry.access_log import Access

_LEFT = 499  # the client was gone before it was told anything; nobody gets this status


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
        access = Access(scope["path"], _LEFT, scope["state"]["request_id"], client[0] if client else None)
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
