"""Every response has a request id and is not cached; every request has one line in the log; HEAD is GET without a body."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.middleware.request_log import AccessLogEntry, RequestLogMiddleware
from holdfast.server.telemetry.logs import current_request_id
from holdfast.server.tenants.directory import TenantDirectory
from support.asgi import call_app

TENANTS = TenantDirectory(ServerConfig())
routes = FastAPI(middleware=[Middleware(RequestLogMiddleware, TENANTS), Middleware(ExceptionMiddleware)])


@routes.get("/items/{name}")
async def item(request: Request, name: str) -> str:
    request.state.access.completion_tokens = 3
    if name == "none":
        raise ApiError(404, "none", code="no_such_item")
    if name == "left":
        raise ClientDisconnect
    return name


@routes.get("/text")
async def text() -> PlainTextResponse:
    return PlainTextResponse("hello")


@routes.get("/endless")
async def endless() -> StreamingResponse:
    async def stream() -> AsyncIterator[bytes]:
        await asyncio.get_running_loop().create_future()
        yield b""

    return StreamingResponse(stream())


@routes.post("/post")
async def post() -> str:
    return "posted"


def logged(app: ASGIApp) -> ASGIApp:
    return RequestLogMiddleware(app, TENANTS)


async def tell(scope: Scope, receive: Receive, send: Send) -> None:
    assert current_request_id.get() == scope["state"]["request_id"]
    headers = [(b"cache-control", b"max-age=60")] if scope["path"] == "/kept" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["state"]["request_id"].encode()})


def request_id(*given: str | bytes) -> str:
    answer = call_app(logged(tell), headers=[("X-Request-Id", one) for one in given])
    assert answer.headers["x-request-id"] == answer.body.decode()
    assert current_request_id.get() is None
    return answer.body.decode()


@pytest.mark.parametrize("given", ["a", "My.id_7-x", "x" * 64])
def test_safe_request_id_is_kept(given: str) -> None:
    assert request_id(given) == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\n", "<b>", "é", b"\xff", "../x", "a,b"])
def test_unsafe_request_id_is_replaced(given: str | bytes) -> None:
    assert re.fullmatch("[0-9a-f]{32}", request_id(given))


def test_new_request_ids_differ() -> None:
    assert len({request_id() for _ in range(100)}) == 100
    assert request_id("a", "b") not in ("a", "b")


def test_responses_are_not_cached_unless_the_route_allows_it() -> None:
    headers = call_app(logged(tell)).headers
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert call_app(logged(tell), path="/kept").headers["cache-control"] == "max-age=60"


def line(caplog: pytest.LogCaptureFixture, path: str) -> Any:
    caplog.clear()
    with caplog.at_level(logging.INFO, "holdfast.access"):
        try:
            call_app(routes, path=path, headers=[("X-Request-Id", "mine")])
        except IndexError:
            assert path.endswith("left")
    (record,) = (one for one in caplog.records if one.name == "holdfast.access")
    return record


def test_response_is_logged_with_its_route_pattern(caplog: pytest.LogCaptureFixture) -> None:
    record = line(caplog, "/items/x")
    assert (record.route, record.status, record.request_id) == ("/items/{name}", 200, "mine")
    assert (record.client, record.completion_tokens) == ("127.0.0.1", 3)
    assert record.total_ms >= 0


def test_error_and_disconnect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    record = line(caplog, "/items/none")
    assert (record.status, record.error) == (404, "no_such_item")
    assert line(caplog, "/items/left").status == 499
    assert line(caplog, "/nothing").route == "/nothing"


def test_probe_of_health_is_logged_for_debugging_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast.access"):
        AccessLogEntry("/health", 503).write()
        assert not caplog.records
        AccessLogEntry("/v1/completions", 503).write()
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_head_has_the_headers_of_get_and_ends_a_stream() -> None:
    answer = call_app(routes, "HEAD", "/text", headers=[("X-Request-Id", "mine")])
    same = call_app(routes, "GET", "/text", headers=[("X-Request-Id", "mine")])
    assert (answer.status, answer.headers, answer.body) == (200, same.headers, b"")
    assert answer.headers["content-length"] == "5"
    assert call_app(routes, "HEAD", "/endless").status == 200
    assert call_app(routes, "HEAD", "/post").status == 405
    assert call_app(routes, "HEAD", "/nothing").status == 404
