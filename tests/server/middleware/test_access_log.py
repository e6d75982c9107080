"""The access log has one line for each request."""

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request

from holdfast.server.errors import ApiError
from holdfast.server.middleware.access_log import AccessLogMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from support.asgi import call_app

routes = FastAPI(middleware=[Middleware(AccessLogMiddleware), Middleware(ExceptionMiddleware)])


@routes.get("/items/{name}")
async def item(request: Request, name: str) -> str:
    request.state.access.completion_tokens = 3
    if name == "none":
        raise ApiError(404, "none", code="no_such_item")
    if name == "left":
        raise ClientDisconnect
    return name


def line(caplog: pytest.LogCaptureFixture, path: str) -> Any:
    caplog.clear()
    with caplog.at_level(logging.INFO, "holdfast.access"):
        try:
            call_app(routes, path=path)
        except IndexError:
            assert path.endswith("left")
    (record,) = (one for one in caplog.records if one.name == "holdfast.access")
    return record


def test_response_is_logged_with_its_route_pattern(caplog: pytest.LogCaptureFixture) -> None:
    record = line(caplog, "/items/x")
    assert (record.route, record.status, record.request_id) == ("/items/{name}", 200, "test")
    assert (record.client, record.completion_tokens) == ("127.0.0.1", 3)
    assert record.total_ms >= 0


def test_error_and_disconnect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    record = line(caplog, "/items/none")
    assert (record.status, record.error) == (404, "no_such_item")
    assert line(caplog, "/items/left").status == 499
    assert line(caplog, "/nothing").route == "/nothing"
