"""Whatever a request ends with, its client gets an answer in one shape, and never our insides.

An `ApiError` is an answer. Anything else that is raised is our fault: the log gets all of it, the client a plain 500. If the
answer has begun, nothing can be said any more: the connection ends before the answer does, which is an error to any client.
"""

import asyncio
import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.errors import ApiError, internal_error
from holdfast.server.http.responses import JSONResponse

_log = logging.getLogger("holdfast.server")
_LONGEST = 200  # characters of a path that are repeated


class ExceptionMiddleware:
    """Everything inside it may raise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
            return
        except ClientDisconnect:
            return
        except ApiError as raised:
            error = raised
        except asyncio.CancelledError:  # the server is being shut down
            if not has_begun:
                await error_response(_GOING_DOWN)(scope, receive, send)
            raise
        except Exception:
            _log.exception("a request failed", extra={"request_id": scope["state"].get("request_id")})
            error = internal_error()
        if "access" in scope["state"]:
            scope["state"]["access"].error = error.code
        if not has_begun:
            await error_response(error)(scope, receive, send)


_GOING_DOWN = ApiError(503, "The server is going down.", code="shutting_down", headers={"Retry-After": "5"})


def error_response(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, error.headers)


def add_exception_handlers(app: FastAPI) -> None:
    """Let what the framework itself refuses be answered like everything else."""
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)


async def _answer_http_exception(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, HTTPException)
    path = str(request.scope.get("raw_path", b""), "ascii", "replace")
    asked = f"{request.method} {path[:_LONGEST]}{'...' if len(path) > _LONGEST else ''}"
    if raised.status_code == 404:
        error = ApiError(
            404, f"Unknown request URL: {asked}. Please check the URL for typos.", code="unknown_url"
        )
    elif raised.status_code == 405:
        allowed = (raised.headers or {}).get("Allow", "another method")
        message = f"Not allowed: {asked}. (HINT: Perhaps you meant to use {allowed}?)"
        error = ApiError(405, message, code="method_not_allowed", headers=raised.headers or {})
    else:
        error = ApiError(raised.status_code, "The request was refused.", headers=raised.headers or {})
    return error_response(error)


async def _answer_validation_error(request: Request, raised: Exception) -> Response:
    """Of a path or a query; bodies are read by `json_body`."""
    assert isinstance(raised, RequestValidationError)
    first: dict[str, Any] = raised.errors()[0]
    param = str(first["loc"][-1])[:_LONGEST]
    message = f"Invalid value for '{param}': {first['msg']}."
    return error_response(ApiError(400, message, param=param, code="invalid_value"))
