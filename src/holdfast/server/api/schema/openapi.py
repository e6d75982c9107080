"""The OpenAPI document: what each route takes, what it gives, and what it says when something is wrong.

It is written for people and for programs that make clients; and the server is tested against it, so what it says is so.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdfast.server.api.schema.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    ReplayRequest,
    ScoreRequest,
    TokenizeRequest,
)
from holdfast.server.api.schema.responses import ErrorResponse
from holdfast.version import __version__

_REF = "#/components/schemas/{model}"
_BODIES = (
    ChatCompletionRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ScoreRequest,
    ReplayRequest,
)
_ERRORS = {
    400: "A field, a prompt or a setting is wrong; the message says which and how.",
    401: "The server asks for a key, and this is none of its keys.",
    404: "There is no such model.",
    413: "The body is too large.",
    415: "The body is not JSON, or compressed.",
    429: "Too many requests wait already; Retry-After says when to ask again.",
    503: "The server is not up yet, or going down; Retry-After says when to ask again.",
    504: "The answer took too long.",
}
READ, WRITTEN, ASKED = (401,), (400, 401, 404, 413, 415), (400, 401, 404, 413, 415, 429, 503, 504)
_TAGS = {
    "answers": "Chat and plain completions, as OpenAI's clients ask for them.",
    "tokens": "Between text and token ids.",
    "reproducibility": "What is ours: the very bits of an answer, again.",
    "server": "What the server is and how it does.",
}
NEEDS_NO_KEY: dict[str, Any] = {"security": []}  # a route's `openapi_extra`
_EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk, as JSON; at the end [DONE]."}},
    "required": ["data"],
}
_STREAM = {"itemSchema": _EVENT, "description": "With `stream`: an event for each piece."}


def make_documented_app(*, with_keys: bool = False) -> FastAPI:
    """An app without routes, whose document will be complete. With keys, it says how to send one."""
    app = FastAPI(
        title="Holdfast",
        version=__version__,
        summary="An LLM server whose answers can be had twice, bit for bit.",
        docs_url=None,
        redoc_url=None,
        openapi_tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
    )
    document_bodies(app, [*_BODIES, ErrorResponse])
    if with_keys:
        _document_keys(app)
    return app


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """A route's `openapi_extra`: its body is this model. `document_bodies` puts the model itself into the document."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def document_bodies(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Let the app's OpenAPI document hold these models and those inside them."""
    names, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    for model in models:
        assert names[(model, "validation")]["$ref"] == _REF.format(model=model.__name__), (
            f"two models named {model.__name__}"
        )
    write = app.openapi

    def openapi() -> dict[str, Any]:
        document = write()
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def responses(
    answer: type[BaseModel] | None, errors: Sequence[int], *, streams: bool = False
) -> dict[int | str, dict[str, Any]]:
    """A route's `responses`: the answer's shape where it is JSON, and which errors may come instead."""
    good: dict[str, Any] = {"description": "The answer."}
    if answer is not None:
        good["model"] = answer
    if streams:
        good["content"] = {"text/event-stream": _STREAM}
    told: dict[int | str, dict[str, Any]] = {status: _error(_ERRORS[status]) for status in errors}
    return {200: good, **told, "default": _error("Any other error.")}


def _error(description: str) -> dict[str, Any]:
    """In JSON, whatever the route gives otherwise."""
    schema = {"$ref": _REF.format(model=ErrorResponse.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _document_keys(app: FastAPI) -> None:
    write = app.openapi

    def openapi() -> dict[str, Any]:
        document = write()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["key"] = {"type": "http", "scheme": "bearer"}
        document["security"] = [{"key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _operation_id(route: APIRoute) -> str:
    return route.name
