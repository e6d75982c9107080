"""The HTTP application: routes and middleware."""

from fastapi import FastAPI

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
from holdfast.server.api.unsupported import unsupported_routes
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
        unsupported_routes(),
    ):
        app.include_router(routes)
    if frontend.config.has_inspector:
        app.include_router(inspector_router(hub))
    add_middleware(app, frontend.config, frontend.tenants, frontend.metrics.refused, frontend.count_request)
    return app
