"""The middleware in front of the routes, outermost first.

The order matters: each layer relies on the others.

    ClientAddressMiddleware     the client's address and its tenant, for all layers
    ResponseHeadersMiddleware   every response has the request id, also an error
    AccessLogMiddleware         logs the status that was sent
    OriginMiddleware            adds CORS headers also to errors, so that a browser can read them
    ExceptionMiddleware         turns exceptions of all layers inside into responses
    ApiKeyMiddleware            refuses unauthorized requests before any further work; the key names the tenant
    HeadRequestMiddleware       answers HEAD through GET routes
    BodyLimitMiddleware         limits the body while a route reads it

All are pure ASGI: Starlette's `BaseHTTPMiddleware` would run each request in another task,
connected by a memory stream, once for each layer. Each module says what Starlette's own middleware
lacks.
"""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.config import ServerConfig
from holdfast.server.middleware.access_log import AccessLogMiddleware, Ended
from holdfast.server.middleware.api_keys import ApiKeyMiddleware
from holdfast.server.middleware.body_limits import BodyLimitMiddleware
from holdfast.server.middleware.client_address import ClientAddressMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware, add_exception_handlers
from holdfast.server.middleware.origins import OriginMiddleware
from holdfast.server.middleware.response_headers import ResponseHeadersMiddleware
from holdfast.server.tenants.directory import TenantDirectory


def add_middleware(
    app: FastAPI,
    config: ServerConfig,
    tenants: TenantDirectory,
    refused: Callable[[str], None] = lambda code: None,
    ended: Ended = lambda tenant, entry: None,
) -> None:
    """Install the middleware.

    `refused` is called with the code of each error that occurs before a route runs, `ended` with the
    access log's entry of each request.
    """
    app.user_middleware[:] = [
        Middleware(ClientAddressMiddleware, tenants),
        Middleware(ResponseHeadersMiddleware),
        Middleware(AccessLogMiddleware, refused, ended),
        Middleware(OriginMiddleware, config),
        Middleware(ExceptionMiddleware),
        Middleware(ApiKeyMiddleware, tenants),
        Middleware(HeadRequestMiddleware),
        Middleware(BodyLimitMiddleware, config),
    ]
    add_exception_handlers(app)
    app.router.redirect_slashes = False  # a redirect would repeat the Host header


class HeadRequestMiddleware:
    """Answers HEAD with the headers of GET.

    The route sees a client that disconnects after the headers.

    FastAPI's routes, unlike Starlette's, do not accept HEAD.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        is_sent = False

        async def send_headers(message: Message) -> None:
            nonlocal is_sent
            if message["type"] == "http.response.start":
                is_sent = True
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise ClientDisconnect

        try:
            await self.app({**scope, "method": "GET"}, receive, send_headers)
        except ClientDisconnect:
            if not is_sent:
                raise
