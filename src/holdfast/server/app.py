"""The HTTP application: routes and middleware."""

from fastapi import FastAPI
from starlette.responses import Response

from holdfast.core.other_engines import ROUTES
from holdfast.server.api.chat import chat_routes
from holdfast.server.api.completions import completion_routes
from holdfast.server.api.continuation import continuation_routes
from holdfast.server.api.embeddings import embedding_routes
from holdfast.server.api.info import info_routes
from holdfast.server.api.messages_api.routes import message_routes
from holdfast.server.api.replay import replay_routes
from holdfast.server.api.responses_api.routes import responses_routes
from holdfast.server.api.schema.openapi import make_documented_app
from holdfast.server.api.score import score_routes
from holdfast.server.api.tokenize import token_routes
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Frontend
from holdfast.server.inspector.hub import Hub
from holdfast.server.inspector.routes import inspector_router
from holdfast.server.middleware.stack import add_middleware


def make_app(frontend: Frontend, hub: Hub) -> FastAPI:
    """Everything a client can reach over HTTP."""
    app = make_documented_app(with_keys=frontend.config.has_keys)
    for routes in (
        info_routes(frontend),
        chat_routes(frontend),
        completion_routes(frontend),
        responses_routes(frontend),
        message_routes(frontend),
        embedding_routes(frontend),
        token_routes(frontend),
        score_routes(frontend),
        replay_routes(frontend),
        continuation_routes(frontend),
    ):
        app.include_router(routes)
    for path, why in ROUTES.items():
        _refuse(app, path, why)
    if frontend.config.has_inspector:
        app.include_router(inspector_router(hub, frontend.config.send_timeout))
    add_middleware(app, frontend.config, frontend.tenants, frontend.metrics.refused, frontend.count_request)
    return app


def _refuse(app: FastAPI, path: str, why: str) -> None:
    """Answer a route of other engines, or of OpenAI, with what to use instead."""

    @app.api_route(path, methods=["GET", "POST"], include_in_schema=False)
    async def refuse() -> Response:
        raise ApiError(404, f"{why}.", code="not_served")
