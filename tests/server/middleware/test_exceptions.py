"""Every exception becomes an error response of one shape, without internals."""

import asyncio
import json
import logging
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from holdfast.server.errors import ApiError
from holdfast.server.middleware.exceptions import ExceptionMiddleware, add_exception_handlers
from support.asgi import Sent, call_app, scope_of, silence


def raising(error: BaseException, *, begun: bool = False) -> ExceptionMiddleware:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return ExceptionMiddleware(app)


def run(app: Any) -> Sent:
    sent = Sent()
    asyncio.run(app(scope_of("GET", "/"), silence, sent))
    return sent


def test_api_error_becomes_a_response(caplog: pytest.LogCaptureFixture) -> None:
    error = ApiError(429, "too many", param="n", code="later", headers={"Retry-After": "7"})
    answer = call_app(raising(error))
    assert answer.status == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.error == {"message": "too many", "type": "rate_limit_error", "param": "n", "code": "later"}
    assert not caplog.records


def test_other_exceptions_become_500_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    answer = call_app(raising(KeyError("/secret/path")))
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert b"secret" not in answer.body
    (record,) = caplog.records
    assert (record.name, record.levelno, record.request_id) == ("holdfast.server", logging.ERROR, "test")  # type: ignore[attr-defined]
    assert "secret" in caplog.text


class PanicException(BaseException):
    """As pyo3 raises for a panic in Rust."""


def test_panic_of_an_extension_module_becomes_500(caplog: pytest.LogCaptureFixture) -> None:
    answer = call_app(raising(PanicException("secret")))
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert b"secret" not in answer.body and "secret" in caplog.text
    with pytest.raises(KeyboardInterrupt):
        call_app(raising(KeyboardInterrupt()))


def test_exception_outside_of_the_middleware_becomes_500_of_the_same_shape() -> None:
    app = FastAPI()
    add_exception_handlers(app)

    @app.get("/bug")
    async def fail() -> None:
        raise KeyError("secret")

    sent = Sent()
    with pytest.raises(KeyError):  # for the log
        asyncio.run(app(scope_of("GET", "/bug"), silence, sent))
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["error"]["code"] == "internal_error"


def test_started_response_stays_incomplete(caplog: pytest.LogCaptureFixture) -> None:
    assert [one["type"] for one in run(raising(KeyError("x"), begun=True))] == ["http.response.start"]
    assert len(caplog.records) == 1
    assert len(run(raising(ApiError(400, "x"), begun=True))) == 1
    assert len(caplog.records) == 1


def test_client_disconnect_sends_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert run(raising(ClientDisconnect())) == []
    assert not caplog.records


@pytest.mark.anyio
async def test_cancelled_request_gets_503_and_stays_cancelled() -> None:
    sent = Sent()

    async def wait(*_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(ExceptionMiddleware(wait)(scope_of("GET", "/"), silence, sent))  # type: ignore[var-annotated]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sent[0]["status"] == 503


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    add_exception_handlers(app)

    @app.get("/only-get/{number}")
    async def only_get(number: int) -> dict[str, int]:
        if number == 418:
            raise HTTPException(418, "/secret/path")
        return {"number": number}

    @app.delete("/only-get/{number}/part")
    @app.get("/only-get/{number}/part")
    async def part(number: int) -> None: ...

    return app


def test_unknown_url_error_uses_openais_words(app: FastAPI) -> None:
    answer = call_app(app, "POST", "/v1/nothing")
    assert answer.status == 404
    assert answer.error["message"] == "Unknown request URL: POST /v1/nothing. Please check the URL for typos."
    assert answer.error["code"] == "unknown_url"
    assert len(call_app(app, "GET", "/" + "x" * 10_000).body) < 500
    assert call_app(app, "GET", "/\U0001f600\x00\n").status == 404


def test_method_not_allowed_names_the_allowed_ones(app: FastAPI) -> None:
    answer = call_app(app, "DELETE", "/only-get/1")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert "GET" in answer.error["message"]
    assert call_app(app, "POST", "/only-get/1/part").headers["allow"] == "DELETE, GET"


def test_invalid_path_parameter_is_400(app: FastAPI) -> None:
    answer = call_app(app, "GET", "/only-get/one")
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "number", "invalid_value")
