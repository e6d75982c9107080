"""Turns every exception into an error response of one shape, without exposing internals.

`to_api_error` says what a client gets. An exception that is none of ours is a bug: it is logged with its
traceback and the client gets a 500. If the response has started, it stays incomplete and the connection is
closed, which every client reports as an error.

Starlette's `ExceptionMiddleware` is inside of all other middleware and would not see errors that
those raise; its `ServerErrorMiddleware` raises again after it has responded, so that uvicorn logs
every error a second time.
"""

import asyncio
import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import NotReady
from holdfast.server.errors import ApiError, internal_error, to_api_error
from holdfast.server.http.sse import JSONResponse

_log = logging.getLogger("holdfast.server")
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_MAX_QUOTED = 200  # characters of a path
_SHUTTING_DOWN = NotReady("the server is going down", code="shutting_down")


class ExceptionMiddleware:
    """Layers outside of it must not raise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def send_and_note_start(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self.app(scope, receive, send_and_note_start)
            return
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the server is being shut down
            if not has_started:
                await error_response(to_api_error(_SHUTTING_DOWN), scope)(scope, receive, send)
            raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as raised:  # a panic in an extension module written in Rust is no `Exception`
            error = to_api_error(raised)
            if error.code == "internal_error":
                _log.exception("request failed", extra={"request_id": scope["state"].get("request_id")})
        if "access" in scope["state"]:
            scope["state"]["access"].error = error.code
        if not has_started:
            await error_response(error, scope)(scope, receive, send)


def error_response(error: ApiError, scope: Scope) -> Response:
    request_id = scope.get("state", {}).get("request_id")
    return JSONResponse(error.body_for(scope["path"], request_id), error.status, error.headers)


def add_exception_handlers(app: FastAPI) -> None:
    """Give errors of FastAPI and Starlette the same shape as all others."""
    app.add_exception_handler(Exception, _handle_bug)  # in a layer outside of `ExceptionMiddleware`
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)


async def _handle_bug(request: Request, raised: Exception) -> Response:
    """Starlette raises it again, and uvicorn logs it."""
    return error_response(internal_error(), request.scope)


async def _handle_http_exception(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, HTTPException)
    path = str(request.scope.get("raw_path", b""), "ascii", "replace")
    route = f"{request.method} {path[:_MAX_QUOTED]}{'...' if len(path) > _MAX_QUOTED else ''}"
    if raised.status_code == 404:
        hint = _url_hint(request) or "Please check the URL for typos."
        error = ApiError(404, f"Unknown request URL: {route}. {hint}", code="unknown_url")
    elif raised.status_code == 405:
        allowed = _allowed_methods(request)
        message = f"Not allowed: {route}. (HINT: Perhaps you meant to use {allowed}?)"
        error = ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed})
    else:
        error = ApiError(raised.status_code, "The request was refused.", headers=raised.headers or {})
    return error_response(error, request.scope)


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes of a path. Starlette names those of the first."""
    routes, scope = request.app.router.routes, request.scope
    tried = [(method, {**scope, "method": method}) for method in _METHODS]
    return ", ".join(
        method for method, with_it in tried if any(one.matches(with_it)[0] is Match.FULL for one in routes)
    )


def _url_hint(request: Request) -> str | None:
    """Return what to do about a URL that only lacks /v1, or has one too many."""
    path = request.scope["path"]
    for meant in (f"/v1{path}", path.removeprefix("/v1")):
        scope = {**request.scope, "path": meant}
        if meant not in ("", "/", path) and any(
            one.matches(scope)[0] is Match.FULL for one in request.app.router.routes
        ):
            base = "end in /v1, without another path" if meant.startswith("/v1/") else "not end in /v1"
            return f"Use {request.method} {meant[:_MAX_QUOTED]}: the client's base URL must {base}."
    return None


async def _handle_validation_error(request: Request, raised: Exception) -> Response:
    """Return an invalid path or query parameter; bodies are parsed by `http.body`."""
    assert isinstance(raised, RequestValidationError)
    first: dict[str, Any] = raised.errors()[0]
    param = str(first["loc"][-1])[:_MAX_QUOTED]
    message = f"Invalid value for '{param}': {first['msg']}."
    return error_response(ApiError(400, message, param=param, code="invalid_value"), request.scope)
