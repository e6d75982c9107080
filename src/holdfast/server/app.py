"""The HTTP application: routes, and what stands in front of them."""

from fastapi import FastAPI
from starlette.middleware import Middleware

from holdfast.server.about import about_routes
from holdfast.server.access_log import AccessLog
from holdfast.server.chat import chat_routes
from holdfast.server.completions import completion_routes
from holdfast.server.front import Front
from holdfast.server.guard import guard
from holdfast.server.inspector.hub import Hub
from holdfast.server.inspector.routes import inspector_router
from holdfast.server.json_body import document_bodies
from holdfast.server.replay import replay_routes
from holdfast.server.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    ReplayBody,
    ScoreBody,
    TokenizeBody,
)
from holdfast.server.score import score_routes
from holdfast.server.tokens import token_routes
from holdfast.version import __version__


def make_app(front: Front, hub: Hub) -> FastAPI:
    """Everything a client can reach."""
    app = FastAPI(title="Holdfast", version=__version__, docs_url=None, redoc_url=None)
    for routes in (
        about_routes(front),
        chat_routes(front),
        completion_routes(front),
        token_routes(front),
        score_routes(front),
        replay_routes(front),
    ):
        app.include_router(routes)
    if front.config.inspector:
        app.include_router(inspector_router(hub))
    document_bodies(app, [ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, ScoreBody, ReplayBody])
    guard(app, front.config, Middleware(AccessLog))
    return app
