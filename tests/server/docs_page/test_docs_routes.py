"""The files of /docs: routes, security headers, and nothing from another host."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from holdfast.server.config import ServerConfig
from holdfast.server.docs_page.routes import ASSETS, INSPECTOR_STATIC, PAGE, SHARED, STATIC, docs_router
from holdfast.server.errors import ApiError
from holdfast.server.middleware.api_keys import ApiKeyMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.tenants.directory import TenantDirectory
from support.asgi import call_app, ok

FILES = [Path(str(STATIC / name)) for name in (PAGE, *ASSETS)]
SHARED_FILES = [Path(str(INSPECTOR_STATIC / name)) for name in SHARED]


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI(docs_url=None)
    app.include_router(docs_router())

    @app.exception_handler(ApiError)
    async def tell(_: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), error.status, error.headers)

    return TestClient(app)


def test_every_file_of_the_page_is_served(client: TestClient) -> None:
    assert {path.name for path in Path(str(STATIC)).iterdir()} == {PAGE, *ASSETS}
    for path in (*FILES, *SHARED_FILES):
        response = client.get("/docs" if path.name == PAGE else f"/docs/{path.name}")
        assert response.status_code == 200 and response.content == path.read_bytes()
        assert response.headers["content-security-policy"].startswith("default-src 'self';")
    for path in ("index.html", "routes.py", "..%2froutes.py", "main.js"):
        assert client.get(f"/docs/{path}").status_code == 404


def test_page_refers_to_served_files_only(client: TestClient) -> None:
    page = client.get("/docs").text
    referred = set(re.findall(r'(?:src|href)="([^"]+)"', page))
    assert referred == {
        "openapi.json",
        *(f"docs/{name}" for name in ("style.css", "docs.css", "docs.js", "icon.svg")),
    }
    assert re.findall(r"\son\w+=|style=|<script(?! type=\"module\" src=)", page) == []
    scripts = [path for path in (*FILES, *SHARED_FILES) if path.suffix == ".js"]
    imported = {name for script in scripts for name in re.findall(r'from "\./([\w.]+)"', script.read_text())}
    assert imported | {"docs.js"} == {script.name for script in scripts}


@pytest.mark.parametrize("path", [*FILES, *SHARED_FILES], ids=lambda path: path.name)
def test_no_file_refers_to_another_host_or_parses_text_as_code(path: Path) -> None:
    text = re.sub(r"(?m)^\s*//.*$", "", path.read_text())
    found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text))
    if path.suffix == ".css":
        found |= set(re.findall(r"@import|url\(", text))
    assert found <= {"http://www.w3.org"}  # the SVG namespace, never fetched
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
    )


@pytest.mark.parametrize("path", ["/docs", "/docs/docs.js"])
def test_browser_is_asked_for_the_key(path: str) -> None:
    app = ExceptionMiddleware(ApiKeyMiddleware(ok, TenantDirectory(ServerConfig(api_keys=("a-key",)))))
    refused = call_app(app, path=path)
    assert refused.status == 401 and refused.headers["www-authenticate"].startswith("Basic")
    assert call_app(app, path=path, headers=[("Authorization", "Bearer a-key")]).body == b"yes"
