"""Routes of the inspector page and its event stream.

Files come from a fixed list and are read once, at start; no path from a client reaches the file
system. Starlette's `StaticFiles` would open files by request path and has no way to set the
security headers below.
"""

from contextlib import AsyncExitStack
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.recordings import recording_files
from holdfast.server.errors import ApiError
from holdfast.server.http.responses import EventStreamResponse
from holdfast.server.inspector.hub import Hub

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
PAGE, RECORDINGS = "index.html", "recordings.json"
ASSETS = (
    *("style.css", "protocol.css", "icon.svg"),
    *("main.js", "events.js", "state.js", "requests.js", "cylinder.js", "timeline.js", "counters.js"),
    *("playground.js", "client.js", "prove.js", "compare.js", "load.js", "recordings.js"),
    *("theme.js", "tips.js", "dom.js"),
)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def inspector_router(hub: Hub) -> APIRouter:
    """`/`, `/inspector/<file>` and `/inspector/events`."""
    router = APIRouter(include_in_schema=False)
    files = {name: _read(name) for name in (PAGE, *ASSETS)} | {
        RECORDINGS: b"[" + b",".join(recording_files()) + b"]"
    }

    @router.get("/")
    async def show_page() -> Response:
        return _respond(PAGE, files[PAGE])

    @router.get("/inspector/events")
    async def stream_events() -> Response:
        hub.require_capacity()
        events, resources = hub.events(), AsyncExitStack()
        resources.push_async_callback(events.aclose)
        return EventStreamResponse(events, resources)

    @router.get("/inspector/{name}")
    async def show_file(name: str) -> Response:
        if name not in files or name == PAGE:
            raise ApiError(404, "There is no such file.")
        return _respond(name, files[name])

    return router


def _read(name: str) -> bytes:
    return (resources.files(__package__) / "static" / name).read_bytes()


def _respond(name: str, content: bytes) -> Response:
    kind = _TYPES[name.rpartition(".")[2]]
    return Response(content, headers={**_HEADERS, "Content-Type": kind})
