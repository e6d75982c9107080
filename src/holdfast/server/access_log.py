"""The access log: one line a request, when it is over. It never holds a prompt, an answer or a key."""

import logging
import time
from dataclasses import asdict, dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("holdfast.access")
_CLIENT_LEFT = 499  # nobody was there to be answered


@dataclass
class Access:
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


class AccessLog:
    """Writes the line of every request that passes; routes fill in what they know of it, at `request.state.access`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        state = scope.setdefault("state", {})
        client = scope.get("client")
        access = state["access"] = Access(scope["path"], request_id=state.get("request_id"))
        access.client = client[0] if client else None

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            route = scope.get("route")
            access.route = getattr(route, "path", access.route)
            access.status = access.status or _CLIENT_LEFT
            access.total_ms = 1e3 * (time.monotonic() - began)
            access.write()
