"""HEAD gets a GET's headers and nothing else, from any route."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.middleware.stack import HeadRequestMiddleware
from support.asgi import ask

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
    answer = ask(HeadRequestMiddleware(app), "HEAD", path)
    assert answer.body == b""
    return answer.status, answer.headers


def test_the_headers_are_those_of_a_get() -> None:
    assert head("/text") == (200, ask(app, "GET", "/text").headers)
    assert head("/text")[1]["content-length"] == "5"


def test_a_stream_without_end_ends() -> None:
    assert head("/endless")[0] == 200


def test_where_there_is_no_get_there_is_no_head() -> None:
    assert head("/post")[0] == 405
    assert head("/nothing")[0] == 404


def test_other_methods_pass() -> None:
    assert ask(HeadRequestMiddleware(app), "GET", "/text").body == b"hello"
    assert ask(HeadRequestMiddleware(app), "POST", "/post").body == b'"posted"'


def test_a_client_that_leaves_before_its_headers_is_not_answered() -> None:
    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    with pytest.raises(IndexError):  # nothing was sent
        ask(ExceptionMiddleware(HeadRequestMiddleware(leave)), "HEAD")
