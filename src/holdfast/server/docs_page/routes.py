"""Routes of the page that shows the OpenAPI document.

A page of our own: FastAPI's loads Swagger UI from another host, and Swagger UI needs inline styles,
which our Content-Security-Policy forbids. Colours, controls and theme are the
inspector's files; they are served here, too, because the inspector can be switched off.
"""

from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.server.errors import ApiError
from holdfast.server.http.static_files import file_response, read_files
from holdfast.server.inspector.routes import STATIC as INSPECTOR_STATIC

STATIC = resources.files(__package__) / "static"
PAGE = "index.html"
ASSETS = ("docs.css", "docs.js", "schema.js", "try.js")
SHARED = ("style.css", "icon.svg", "dom.js", "theme.js")


def docs_router() -> APIRouter:
    """`/docs` and `/docs/<file>`."""
    router = APIRouter(include_in_schema=False)
    page = read_files(STATIC, (PAGE,))[PAGE]
    files = {**read_files(STATIC, ASSETS), **read_files(INSPECTOR_STATIC, SHARED)}

    @router.get("/docs")
    async def show_docs() -> Response:
        return file_response(PAGE, page)

    @router.get("/docs/{name}")
    async def show_docs_file(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "There is no such file.")
        return file_response(name, files[name])

    return router
