"""The HTTP application: routes and middleware.

The order of the middleware matters, outermost first. Each layer relies on the others.

    RequestLogMiddleware   request id and headers of every response, also an error; logs the status that was sent;
                           the client's address
    OriginMiddleware       adds CORS headers also to errors, so that a browser can read them
    ExceptionMiddleware    turns exceptions of all layers inside into responses
    TenantMiddleware       refuses requests without a valid key before any further work; the key names the tenant
    BodyLimitMiddleware    limits the body while a route reads it

All are pure ASGI: Starlette's `BaseHTTPMiddleware` would run each request in another task, connected by a
memory stream, once for each layer. Each module says what Starlette's own middleware lacks. The bodies of
a stream pass none of them: see `http.sse.set_body_send`.
"""

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.responses import Response

from holdfast.engine.other_engines import answers
from holdfast.server.api.anthropic.routes import message_routes
from holdfast.server.api.chat import chat_routes
from holdfast.server.api.completions import completion_routes
from holdfast.server.api.embeddings import embedding_routes
from holdfast.server.api.info import info_routes
from holdfast.server.api.replay import replay_routes
from holdfast.server.api.responses.routes import responses_routes
from holdfast.server.api.schema.openapi import make_documented_app
from holdfast.server.api.score import score_routes
from holdfast.server.api.tokenize import token_routes
from holdfast.server.batches.routes import batch_routes
from holdfast.server.batches.service import open_service
from holdfast.server.errors import ApiError
from holdfast.server.inspector.routes import inspector_router
from holdfast.server.middleware.body_limits import BodyLimitMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware, add_exception_handlers
from holdfast.server.middleware.origins import OriginMiddleware
from holdfast.server.middleware.request_log import RequestLogMiddleware
from holdfast.server.middleware.tenant import TenantMiddleware
from holdfast.server.served_models import ServedModels

# Routes that other servers have without /v1, too, with the same bodies and responses. Not /completions and
# /embeddings: llama.cpp answers those in words of its own.
_WITHOUT_V1 = ("/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/models")


def make_app(models: ServedModels) -> FastAPI:
    config = models.config
    app = make_documented_app(with_keys=config.has_keys)
    for routes in (
        info_routes(models),
        chat_routes(models),
        completion_routes(models),
        responses_routes(models),
        message_routes(models),
        embedding_routes(models),
        token_routes(models),
        score_routes(models),
        replay_routes(models),
        batch_routes(models),
    ):
        app.include_router(routes)
        _serve_without_v1(app, routes)
    for path, why in answers("routes").items():
        _refuse(app, path, why)
    if config.has_inspector:
        app.include_router(
            inspector_router(lambda name: models.find_all(name)[0].hub, lambda: models.config.send_timeout)
        )
    app.user_middleware[:] = [
        Middleware(RequestLogMiddleware, models.tenants, models.metrics.refused, models.count_request),
        Middleware(OriginMiddleware, config),
        Middleware(ExceptionMiddleware),
        Middleware(TenantMiddleware, models.tenants),
        Middleware(BodyLimitMiddleware, config),
    ]
    add_exception_handlers(app)
    if config.files_dir is not None:
        models.batches = open_service(models, app, config.files_dir, config.max_files_bytes)
    app.router.redirect_slashes = False  # a redirect would repeat the Host header
    return app


def _serve_without_v1(app: FastAPI, routes: APIRouter) -> None:
    """Serve some of these routes without /v1, too. All middleware sees them as it sees the others."""
    for route in routes.routes:
        if isinstance(route, APIRoute) and route.path in _WITHOUT_V1:
            path, methods = route.path.removeprefix("/v1"), list(route.methods or ())
            app.add_api_route(path, route.endpoint, methods=methods, include_in_schema=False)


def _refuse(app: FastAPI, path: str, why: str) -> None:
    """Answer a route of other engines, or of OpenAI, with what to use instead."""

    @app.api_route(path, methods=["GET", "POST"], include_in_schema=False)
    async def refuse() -> Response:
        raise ApiError(404, f"{why}.", code="not_served")
