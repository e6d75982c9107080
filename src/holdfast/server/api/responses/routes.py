"""POST /v1/responses and /v1/responses/input_tokens."""

from fastapi import APIRouter
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.api.chat_plan import render_chat
from holdfast.server.api.chat_response import serve_chat
from holdfast.server.api.responses.objects import InputTokens, ResponsesResponse, ResponseWriter
from holdfast.server.api.responses.requests import InputTokensRequest, ResponsesRequest
from holdfast.server.api.responses.translation import ERROR_WORDS, to_chat, to_chat_prompt
from holdfast.server.api.schema.openapi import BODY_ERRORS, ENGINE_ERRORS, documented
from holdfast.server.errors import ApiError, errors_in_words
from holdfast.server.http.sse import JSONResponse
from holdfast.server.served_models import ServedModels

_STORED = {
    "/v1/responses/{id:response}": ["GET", "POST", "DELETE"],
    "/v1/responses/{id:response}/cancel": ["POST"],
    "/v1/responses/{id:response}/input_items": ["GET"],
}


class _ResponseId(StringConvertor):
    """The id of a response in a path, which is never the name of a route beside it."""

    regex = r"(?!input_tokens\Z)[^/]+"


register_url_convertor("response", _ResponseId())


def responses_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["completions"])

    @router.post(
        "/v1/responses",
        **documented(ResponsesResponse, ENGINE_ERRORS, body=ResponsesRequest, streams=True),
    )
    async def create_response(request: Request) -> Response:
        """Create a response. Nothing is stored."""
        body = await models.bodies.read(request, ResponsesRequest)
        frontend = models.choose(body.model)
        chat = await frontend.prepare(request, lambda token: to_chat(body))
        with errors_in_words(ERROR_WORDS):
            return await serve_chat(request, frontend, chat, lambda response: ResponseWriter(response, body))

    @router.post(
        "/v1/responses/input_tokens", **documented(InputTokens, BODY_ERRORS, body=InputTokensRequest)
    )
    async def count_input_tokens(request: Request) -> Response:
        """Count the tokens of a response's prompt, without a response."""
        body = await models.bodies.read(request, InputTokensRequest)
        frontend = models.choose(body.model)
        with errors_in_words(ERROR_WORDS):
            ids, _ = await frontend.run(
                request, lambda token: render_chat(frontend.prompts, to_chat_prompt(body), token, whole=True)
            )
        return JSONResponse(InputTokens(len(ids)))

    async def refuse_stored() -> Response:
        message = "responses are not stored; keep the response of POST /v1/responses."
        raise ApiError(404, message, code="not_served")

    for path, methods in _STORED.items():
        router.add_api_route(path, refuse_stored, methods=methods, include_in_schema=False)
    return router
