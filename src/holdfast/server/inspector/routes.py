"""Routes of the inspector page and its event stream.

The page's files are read once and sent with security headers. No path from a client reaches
the file system. Starlette's `StaticFiles` would open files by request path and has no way to set these
headers.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import resources

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.recordings import recording_files
from holdfast.server.errors import ApiError
from holdfast.server.http.sse import EventStreamResponse
from holdfast.server.inspector.hub import Hub
from holdfast.server.tenants.addresses import is_loopback
from holdfast.server.tenants.tenant import Tenant, tenant_of

PAGE, RECORDINGS = "index.html", "recordings.json"
STATIC = resources.files(__package__) / "static"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def inspector_router(find_hub: Callable[[str | None], Hub], send_timeout: Callable[[], float]) -> APIRouter:
    """Return the routes `/`, `/inspector/<file>` and `/inspector/events`. find_hub: by the name of a model, if
    the page's address has one. send_timeout: of this moment."""
    router = APIRouter(include_in_schema=False)
    files = {one.name: one.read_bytes() for one in STATIC.iterdir() if one.is_file()}
    files[RECORDINGS] = b"[" + b",".join(recording_files()) + b"]"

    @router.get("/")
    async def show_page() -> Response:
        return _file_response(PAGE, files[PAGE])

    @router.get("/inspector/events")
    async def stream_events(request: Request) -> Response:
        tenant, hub = tenant_of(request), find_hub(request.query_params.get("model"))
        hub.require_capacity()
        shown = None if _sees_all(request, tenant) else tenant.id
        events = hub.events(shown, request.query_params.get("replica", ""))
        resources = AsyncExitStack()
        resources.push_async_callback(events.aclose)
        return EventStreamResponse(events, resources, send_timeout=send_timeout())

    @router.get("/inspector/{name}")
    async def show_file(name: str) -> Response:
        if name not in files or name == PAGE:
            raise ApiError(404, "There is no such file.")
        return _file_response(name, files[name])

    return router


def _sees_all(request: Request, tenant: Tenant) -> bool:
    """Return whether the page shows the requests of all tenants: to an admin key, and without keys to clients
    on this machine.
    """
    if tenant.has_key:
        return tenant.is_admin
    return request.client is not None and is_loopback(request.client.host)


def _file_response(name: str, content: bytes) -> Response:
    kind = _TYPES[name.rpartition(".")[2]]
    return Response(content, headers={**_HEADERS, "Content-Type": kind})
