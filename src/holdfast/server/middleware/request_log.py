"""Outermost layer of a request: its id, its client's address, the headers of every response, one line of the log.

The request id is the client's own X-Request-Id if it is safe to print, else a new one; some bodies
may name one, too. It is stored as `scope["state"]["request_id"]`, and log records of the request
contain it. Behind a trusted proxy the client's address is the one that the proxy reports; it replaces
`scope["client"]`.

The line never contains a prompt, a completion or a key. Routes add fields through
`request.state.access`. Errors that occur before a route runs are counted here.

A HEAD request runs as GET, because FastAPI's routes, unlike Starlette's, do not accept HEAD. The route
sees a client that disconnects after the headers.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.errors import is_anthropic
from holdfast.server.http.sse import set_body_send
from holdfast.server.telemetry.logs import current_request_id
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import Tenant, set_tenant, tenant_of

_log = logging.getLogger("holdfast.access")
_SAFE_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
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
        """Write the line: a warning for a 5xx status, else info. Probes of /health are for debugging."""
        fields = dict(vars(self))
        for name in ("first_token_ms", "total_ms"):
            if fields[name] is not None:
                fields[name] = round(fields[name], 1)
        level = logging.WARNING if self.status >= 500 else logging.INFO
        level = logging.DEBUG if self.route == "/health" else level
        _log.log(level, "request", extra=fields)


class RequestLogMiddleware:
    """Outside of every layer that responds.

    `refused` is called with the code of each error that occurs before a route runs, `ended` with the
    entry of each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: TenantDirectory,
        refused: Callable[[str], None] = lambda code: None,
        ended: Callable[[Tenant, AccessLogEntry], None] = lambda tenant, entry: None,
    ) -> None:
        self.app = app
        self._tenants = tenants
        self._refused = refused
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        if is_head:  # uvicorn looks at its own scope
            scope = {**scope, "method": "GET"}
        began = time.monotonic()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _given_id(scope) or uuid.uuid4().hex
        access = AccessLogEntry(
            scope["path"], CLIENT_DISCONNECTED, request_id=request_id, client=self._find_client(scope)
        )
        state["access"] = access
        set_body_send(scope, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = message["status"]
                _add_headers(message, state["request_id"], scope["path"])
            await send(message)
            if is_head:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                raise ClientDisconnect

        token = current_request_id.set(request_id)
        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            if not is_head:
                raise
        finally:
            current_request_id.reset(token)
            self._end(scope, access, 1e3 * (time.monotonic() - began))

    def _find_client(self, scope: Scope) -> str | None:
        """Return the client's address. Its tenant is that of the address, unless a key names another."""
        peer = scope.get("client") or ("", 0)
        address = self._tenants.address(peer[0], scope["headers"])
        if address is not None and str(address) != peer[0]:
            scope["client"] = (str(address), 0)
        set_tenant(scope, self._tenants.by_address(address))
        return scope["client"][0] if scope.get("client") else None

    def _end(self, scope: Scope, access: AccessLogEntry, milliseconds: float) -> None:
        if "route" in scope:
            access.route = scope["route"].path
        tenant = tenant_of(scope)
        access.tenant = tenant.name
        access.total_ms = milliseconds
        access.write()
        # A `Call` counts its own errors; a probe of /health gets none.
        if access.status >= 400 and access.deterministic is None and access.error is not None:
            self._refused(access.error)
        self._ended(tenant, access)


def use_request_id(request: Request, request_id: str | None) -> None:
    """Take the request id from the body, unless a header has given one. It must be safe to print."""
    if request_id is not None and _given_id(request.scope) is None:
        request.state.request_id = request.state.access.request_id = request_id
        current_request_id.set(request_id)


def _given_id(scope: Scope) -> str | None:
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    return str(given[0], "ascii") if len(given) == 1 and _SAFE_ID.fullmatch(given[0]) else None


def _add_headers(start: Message, request_id: str, path: str) -> None:
    headers = MutableHeaders(scope=start)
    headers["X-Request-Id"] = request_id
    if is_anthropic(path):
        headers["Request-Id"] = request_id  # where Anthropic's clients look for it
    headers["X-Content-Type-Options"] = "nosniff"
    headers.setdefault("Cache-Control", "no-store")
