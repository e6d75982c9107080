"""Static files of our pages: a fixed list, read once, sent with security headers.

No path from a client reaches the file system. Starlette's `StaticFiles` would open files by request
path and has no way to set these headers.
"""

from importlib.resources.abc import Traversable

from starlette.responses import Response

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


def read_files(folder: Traversable, names: tuple[str, ...]) -> dict[str, bytes]:
    """The content of these files of a folder, by name."""
    return {name: (folder / name).read_bytes() for name in names}


def file_response(name: str, content: bytes) -> Response:
    """One file. Its type follows from its name."""
    kind = _TYPES[name.rpartition(".")[2]]
    return Response(content, headers={**_HEADERS, "Content-Type": kind})
