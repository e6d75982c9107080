"""The access log: one line for each request, written when it ends.

It never contains a prompt, a completion or a key.

Routes add fields through `request.state.access`. Errors that occur before a route runs are counted
here.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.tenants.tenant import Tenant, tenant_of

_log = logging.getLogger("holdfast.access")
CLIENT_DISCONNECTED = 499  # logged if the client left before the response started; never sent


@dataclass
class AccessLogEntry:
    """The fields of one line. Fields that stay None are omitted.

    route is the route's pattern, or the path without query if no route matched. mode is certified,
    verified or none.
    """

    route: str
    status: int = 0
    request_id: str | None = None
    engine_ids: tuple[int, ...] | None = None  # of its prompts, in the engine's log and the inspector
    replicas: tuple[str, ...] | None = None  # of a pool, that computed it, in order
    client: str | None = None  # its address
    tenant: str | None = None  # the name of its key; without keys, its address or the /64 of it
    deterministic: bool | None = None
    mode: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None
    finish_reason: str | None = None
    error: str | None = None  # its `code`

    def write(self) -> None:
        """Write the line: a warning for a 5xx status, else info."""
        fields = dict(vars(self))
        for name in ("first_token_ms", "total_ms"):
            if fields[name] is not None:
                fields[name] = round(fields[name], 1)
        level = logging.WARNING if self.status >= 500 else logging.INFO
        _log.log(level, "request", extra=fields)


Ended = Callable[[Tenant, AccessLogEntry], None]


class AccessLogMiddleware:
    """Must be outside of every layer that responds, so that it sees the status that was sent."""

    def __init__(
        self,
        app: ASGIApp,
        refused: Callable[[str], None] = lambda code: None,
        ended: "Ended" = lambda tenant, entry: None,
    ) -> None:
        self.app = app
        self._refused = refused
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        client = scope.get("client")
        access = AccessLogEntry(
            scope["path"],
            CLIENT_DISCONNECTED,
            request_id=scope["state"]["request_id"],
            client=client[0] if client else None,
        )
        scope["state"]["access"] = access

        async def send_and_note_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note_status)
        finally:
            if "route" in scope:
                access.route = scope["route"].path
            tenant = tenant_of(scope)
            access.tenant = tenant.name
            access.total_ms = 1e3 * (time.monotonic() - began)
            access.write()
            if access.status >= 400 and access.deterministic is None:  # a `Call` counts its own errors
                self._refused(access.error or str(access.status))
            self._ended(tenant, access)
