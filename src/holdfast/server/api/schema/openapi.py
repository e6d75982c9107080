"""The OpenAPI document: request bodies, responses and errors of each route.

The fuzz test compares every response of a running server with this document.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdfast.server.api.schema.objects import ErrorResponse, JsonObject
from holdfast.version import __version__

_REF = "#/components/schemas/{model}"
_MODELS: dict[str, type] = {}  # the bodies and responses of all routes, by name
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
# Which of these a route may return: without a body, with a body, with a request to the engine.
GET_ERRORS = (401,)
BODY_ERRORS = (400, 401, 404, 413, 415)
ENGINE_ERRORS = (*BODY_ERRORS, 429, 503, 504)
_TAGS = {
    "completions": "Chat completions, completions and responses, compatible with OpenAI's.",
    "messages": "Messages, compatible with Anthropic's.",
    "embeddings": "Embeddings, compatible with OpenAI's.",
    "tokens": "Tokenization.",
    "batches": "Files and batches, compatible with OpenAI's.",
    "reproducibility": "Bitwise reproduction: scores, replays and continuations.",
    "server": "Information about the server.",
}
_EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk or an event as JSON."}},
    "required": ["data"],
}
_STREAM = {"itemSchema": _EVENT, "description": "With `stream`: one event for each chunk."}


def make_documented_app(*, with_keys: bool = False) -> FastAPI:
    """Return an app without routes, with a complete OpenAPI document.

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
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        document = make_document()
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(_schemas())
        if with_keys:
            components["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            }
            document["security"] = [{"key": []}, {"x-api-key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def documented(
    answer: type[JsonObject] | tuple[type[JsonObject], ...],
    errors: Sequence[int],
    *,
    body: type[BaseModel] | None = None,
    streams: bool = False,
    error: type[JsonObject] = ErrorResponse,
    needs_key: bool = True,
) -> dict[str, Any]:
    """Return the `openapi_extra` and `responses` of a route.

    answer: the JSON of a response, one of several objects, or () for text. errors: the statuses that the
    route may return. streams: the response may be a stream of events.
    """
    answers = answer if isinstance(answer, tuple) else (answer,)
    refs = [_ref(one) for one in answers]
    content: dict[str, Any] = {}
    if refs:
        content["application/json"] = {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}
    if streams:
        content["text/event-stream"] = _STREAM
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "Success.", "content": content}}
    # Errors are JSON, also of routes with another content type.
    what = {"application/json": {"schema": _ref(error)}}
    responses |= {status: {"description": _ERRORS[status], "content": what} for status in errors}
    responses["default"] = {"description": "Any other error.", "content": what}
    extra: dict[str, Any] = {} if needs_key else {"security": []}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return {"openapi_extra": extra, "responses": responses}


def _ref(model: type) -> dict[str, str]:
    known = _MODELS.setdefault(model.__name__, model)
    assert known is model, f"two models named {model.__name__}"
    return {"$ref": _REF.format(model=model.__name__)}


def _schemas() -> dict[str, Any]:
    bodies = [model for model in _MODELS.values() if issubclass(model, BaseModel)]
    answers = [model for model in _MODELS.values() if not issubclass(model, BaseModel)]
    _, read = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
    _, written = msgspec.json.schema_components(answers, ref_template=_REF.replace("model", "name"))
    schemas: dict[str, Any] = read.get("$defs", {})
    assert not schemas.keys() & written.keys()
    return schemas | written


def _operation_id(route: APIRoute) -> str:
    return route.name
