"""What stands between the socket and the routes, from the outside in.

    ResponseHeadersMiddleware   every answer has the request's id, even a refusal
    AccessLogMiddleware        the access log says what the client was told
    OriginMiddleware         a browser must be able to read refusals, so it stands outside of them
    ExceptionMiddleware      whatever is raised inside becomes an answer
    ApiKeyMiddleware            who may not ask costs nothing more
    HeadRequestMiddleware    routes know of GET only
    BodyLimitMiddleware          right in front of whoever reads them

The order is the point: each relies on those around it.
"""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.middleware.access_log import AccessLogMiddleware
from holdfast.server.middleware.api_keys import ApiKeyMiddleware
from holdfast.server.middleware.body_limits import BodyLimitMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware, add_exception_handlers
from holdfast.server.middleware.origins import OriginMiddleware
from holdfast.server.middleware.response_headers import ResponseHeadersMiddleware


def add_middleware(
    app: FastAPI, config: ServerConfig, refused: Callable[[str], None] = lambda code: None
) -> None:
    """Put all of it in front of the app's routes. refused hears the code of whatever is refused before a route answers."""
    app.user_middleware[:] = [
        Middleware(ResponseHeadersMiddleware),
        Middleware(AccessLogMiddleware, refused),
        Middleware(OriginMiddleware, config),
        Middleware(ExceptionMiddleware),
        Middleware(ApiKeyMiddleware, config),
        Middleware(HeadRequestMiddleware),
        Middleware(BodyLimitMiddleware, config),
    ]
    add_exception_handlers(app)
    app.router.redirect_slashes = False  # a route has one URL, and no answer is made from a Host header


class HeadRequestMiddleware:
    """Routes see a GET whose client leaves once it has the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        is_answered = False

        async def send_headers(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise ClientDisconnect

        try:
            await self.app({**scope, "method": "GET"}, receive, send_headers)
        except ClientDisconnect:
            if not is_answered:
                raise
