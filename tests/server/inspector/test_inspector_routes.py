"""The inspector's files: routes and security headers."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from holdfast.recordings import recording_files
from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.inspector.hub import Hub
from holdfast.server.inspector.routes import PAGE, inspector_router
from holdfast.server.tenants.tenant import Tenant, address_tenant, key_tenant, set_tenant
from support.asgi import Sent, scope_of, silence

STATIC = Path(str(resources.files("holdfast.server.inspector") / "static"))
SCRIPTS = sorted(STATIC.glob("*.js"))


@pytest.fixture
def hub() -> Hub:
    return Hub(str, lambda on: None)


@pytest.fixture
def client(hub: Hub) -> TestClient:
    app = FastAPI()
    app.include_router(inspector_router(lambda name: hub, lambda: 60.0))

    @app.exception_handler(ApiError)
    async def tell(_: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), error.status, error.headers)

    return TestClient(app)


def test_every_file_of_the_page_is_served(client: TestClient) -> None:
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for name in (path.name for path in STATIC.iterdir()):
        response = client.get("/" if name == PAGE else f"/inspector/{name}")
        assert response.status_code == 200
        assert response.content == (STATIC / name).read_bytes()
        assert response.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
        assert response.headers["content-security-policy"].startswith("default-src 'self';")
        assert response.headers["x-content-type-options"] == "nosniff"


def test_recordings_are_served_as_one_array(client: TestClient) -> None:
    response = client.get("/inspector/recordings.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == [json.loads(one) for one in recording_files()]


@pytest.mark.parametrize(
    "path",
    [
        *("hub.py", "index.html", "MAIN.JS", "main.js%00", "%2e%2e/hub.py", "..%2fhub.py"),
        *("..%5chub.py", "%2fetc%2fpasswd", "....//hub.py", "main.js.map", "static/main.js", ""),
    ],
)
def test_other_paths_are_not_served(client: TestClient, path: str) -> None:
    assert client.get(f"/inspector/{path}").status_code == 404


ADMIN, KEY = key_tenant("root", is_admin=True), key_tenant("a")


@pytest.mark.parametrize(
    ("tenant", "address", "shown"),
    [
        pytest.param(ADMIN, "203.0.113.7", None, id="admin"),
        pytest.param(KEY, "127.0.0.1", KEY.id, id="key"),
        pytest.param(address_tenant("127.0.0.1"), "127.0.0.1", None, id="loopback"),
        pytest.param(address_tenant("203.0.113.7"), "203.0.113.7", "address:203.0.113.7", id="address"),
    ],
)
def test_page_shows_what_its_client_may_see(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tenant: Tenant, address: str, shown: str | None
) -> None:
    asked: list[str | None] = []

    async def events(self: Hub, holder: str | None, replica: str) -> AsyncIterator[bytes]:
        asked.append(holder)
        yield b""

    monkeypatch.setattr(Hub, "events", events)
    app = FastAPI()
    app.include_router(inspector_router(lambda name: hub, lambda: 60.0))
    scope = scope_of("GET", "/inspector/events")
    set_tenant(scope, tenant)
    scope["client"] = (address, 1)
    asyncio.run(app(scope, silence, Sent()))
    assert asked == [shown]


@pytest.mark.parametrize(
    ("host", "given", "served"),
    [
        ("127.0.0.1", None, True),
        ("localhost", None, True),
        ("::1", None, True),
        ("0.0.0.0", None, False),
        ("192.168.1.7", None, False),
        ("0.0.0.0", True, True),
        ("127.0.0.1", False, False),
    ],
)
def test_inspector_is_off_outside_loopback_unless_asked_for(
    host: str, given: bool | None, served: bool
) -> None:
    assert ServerConfig(host=host, inspector=given).has_inspector is served


def test_scripts_never_parse_text_as_markup_or_code() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|javascript:"
    for script in SCRIPTS:
        assert re.findall(forbidden, script.read_text()) == [], script.name
    page = (STATIC / PAGE).read_text()
    assert re.findall(r"\son\w+=|style=|<script(?! type=\"module\" src=)", page) == []


def test_files_refer_to_no_other_host() -> None:
    for path in STATIC.iterdir():
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"(?m)^\s*//.*$", "", path.read_text()))
        assert set(found) <= {"http://www.w3.org"}, path.name  # the SVG namespace, never fetched
