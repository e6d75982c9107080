"""HEAD returns the headers of GET, from any route."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.middleware.stack import HeadRequestMiddleware
from support.asgi import call_app

app = FastAPI()
ended = []


@app.get("/text")
async def text() -> PlainTextResponse:
    return PlainTextResponse("hello")


@app.get("/endless")
async def endless() -> StreamingResponse:
    async def stream() -> AsyncIterator[bytes]:
        try:
            await asyncio.get_running_loop().create_future()
            yield b""
        finally:
            ended.append("endless")

    return StreamingResponse(stream())


@app.post("/post")
async def post() -> str:
    return "posted"


def head(path: str) -> tuple[int, dict[str, str]]:
    answer = call_app(HeadRequestMiddleware(app), "HEAD", path)
    assert answer.body == b""
    return answer.status, answer.headers


def test_head_has_the_headers_of_get() -> None:
    assert head("/text") == (200, call_app(app, "GET", "/text").headers)
    assert head("/text")[1]["content-length"] == "5"


def test_head_of_an_endless_stream_ends() -> None:
    assert head("/endless")[0] == 200


def test_head_without_get_route_is_refused() -> None:
    assert head("/post")[0] == 405
    assert head("/nothing")[0] == 404


def test_other_methods_are_unchanged() -> None:
    assert call_app(HeadRequestMiddleware(app), "GET", "/text").body == b"hello"
    assert call_app(HeadRequestMiddleware(app), "POST", "/post").body == b'"posted"'


def test_disconnect_before_the_headers_sends_nothing() -> None:
    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    with pytest.raises(IndexError):  # nothing was sent
        call_app(ExceptionMiddleware(HeadRequestMiddleware(leave)), "HEAD")
