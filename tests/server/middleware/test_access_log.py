"""One line a request, whatever became of it."""

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request

from holdfast.server.errors import ApiError
from holdfast.server.middleware.access_log import AccessLogMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from support.asgi import ask

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
            ask(routes, path=path)
        except IndexError:
            assert path.endswith("left")
    (record,) = (one for one in caplog.records if one.name == "holdfast.access")
    return record


def test_an_answer_is_noted_by_its_route(caplog: pytest.LogCaptureFixture) -> None:
    record = line(caplog, "/items/x")
    assert (record.route, record.status, record.request_id) == ("/items/{name}", 200, "test")
    assert (record.client, record.completion_tokens) == ("127.0.0.1", 3)
    assert record.total_ms >= 0


def test_so_is_a_refusal_and_a_client_that_left(caplog: pytest.LogCaptureFixture) -> None:
    record = line(caplog, "/items/none")
    assert (record.status, record.error) == (404, "no_such_item")
    assert line(caplog, "/items/left").status == 499
    assert line(caplog, "/nothing").route == "/nothing"
