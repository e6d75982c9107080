"""The OpenAPI document: request bodies, responses and errors of each route.

The fuzz test compares every response of a running server with this document.
"""

from collections.abc import Sequence
from types import UnionType
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdfast.server.api.anthropic.requests import CountTokensRequest, MessagesRequest
from holdfast.server.api.responses.requests import InputTokensRequest, ResponsesRequest
from holdfast.server.api.schema.objects import AnthropicErrorResponse, ErrorResponse
from holdfast.server.api.schema.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    ContinueBody,
    DetokenizeRequest,
    EmbeddingRequest,
    ReplayRequest,
    ScoreRequest,
    TokenizeRequest,
)
from holdfast.version import __version__

_REF = "#/components/schemas/{model}"
_BODIES = (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    InputTokensRequest,
    MessagesRequest,
    CountTokensRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ScoreRequest,
    ReplayRequest,
    ContinueBody,
)
_ERRORS = {
    400: "A field is invalid; the message says which one, and what is expected.",
    401: "The API key is missing or wrong.",
    404: "The model does not exist.",
    413: "The body is too large.",
    409: "The answer contradicts what the client has, or the receipt is of another engine.",
    415: "The body is not JSON, or is compressed.",
    429: "Too many requests are waiting; Retry-After says when to retry.",
    503: "The server is starting or shutting down; Retry-After says when to retry.",
    504: "The request timed out.",
}
# Which of these errors a route may return: without a body, with a body, with a request to the
# engine.
GET_ERRORS = (401,)
BODY_ERRORS = (400, 401, 404, 413, 415)
ENGINE_ERRORS = (*BODY_ERRORS, 429, 503, 504)
_TAGS = {
    "completions": "Chat completions, completions and responses, compatible with OpenAI's.",
    "messages": "Messages, compatible with Anthropic's.",
    "embeddings": "Embeddings, compatible with OpenAI's.",
    "tokens": "Tokenization.",
    "reproducibility": "Bitwise reproduction: scores, replays and continuations.",
    "server": "Information about the server.",
}
NEEDS_NO_KEY: dict[str, Any] = {"security": []}  # a route's `openapi_extra`
_EVENT = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "A chunk or an event as JSON."},
    },
    "required": ["data"],
}
_STREAM = {"itemSchema": _EVENT, "description": "With `stream`: one event for each chunk."}


def make_documented_app(*, with_keys: bool = False) -> FastAPI:
    """An app without routes, with a complete OpenAPI document.

    with_keys: document the bearer authentication.
    """
    app = FastAPI(
        title="Holdfast",
        version=__version__,
        summary="An LLM server that gives the same answer, bit for bit, every time.",
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        openapi_tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
    )
    document_bodies(app, [*_BODIES, ErrorResponse, AnthropicErrorResponse])
    if with_keys:
        _document_keys(app)
    return app


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """A route's `openapi_extra` for this request model. `document_bodies` adds the model itself."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def document_bodies(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Add these models, and those they refer to, to the app's OpenAPI document."""
    names, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    for model in models:
        assert names[(model, "validation")]["$ref"] == _REF.format(model=model.__name__), (
            f"two models named {model.__name__}"
        )
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        document = make_document()
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def responses(
    model: type[BaseModel] | UnionType | None,
    errors: Sequence[int],
    *,
    streams: bool = False,
    error: type[BaseModel] = ErrorResponse,
) -> dict[int | str, dict[str, Any]]:
    """A route's `responses`: the model of a JSON response, and the possible errors."""
    success: dict[str, Any] = {"description": "Success."}
    if model is not None:
        success["model"] = model
    if streams:
        success["content"] = {"text/event-stream": _STREAM}
    documented: dict[int | str, dict[str, Any]] = {
        status: _error(_ERRORS[status], error) for status in errors
    }
    return {200: success, **documented, "default": _error("Any other error.", error)}


def _error(description: str, model: type[BaseModel]) -> dict[str, Any]:
    """Errors are JSON, also of routes with another content type."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _document_keys(app: FastAPI) -> None:
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        document = make_document()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["key"] = {"type": "http", "scheme": "bearer"}
        schemes["x-api-key"] = {"type": "apiKey", "in": "header", "name": "X-Api-Key"}
        document["security"] = [{"key": []}, {"x-api-key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _operation_id(route: APIRoute) -> str:
    return route.name
