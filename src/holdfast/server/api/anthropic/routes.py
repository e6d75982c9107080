"""POST /v1/messages and /v1/messages/count_tokens."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.api.anthropic.objects import MessageResponse, MessageTokensCount, MessageWriter
from holdfast.server.api.anthropic.requests import ConversationFields, CountTokensRequest, MessagesRequest
from holdfast.server.api.anthropic.translation import ERROR_WORDS, to_chat, to_chat_prompt
from holdfast.server.api.chat_plan import render_chat
from holdfast.server.api.chat_response import serve_chat
from holdfast.server.api.schema.objects import AnthropicErrorResponse
from holdfast.server.api.schema.openapi import BODY_ERRORS, ENGINE_ERRORS, documented
from holdfast.server.errors import ApiError, errors_in_words
from holdfast.server.frontend import Frontend
from holdfast.server.http.sse import JSONResponse
from holdfast.server.served_models import ServedModels


def message_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["messages"])

    @router.post(
        "/v1/messages",
        **documented(
            MessageResponse, ENGINE_ERRORS, body=MessagesRequest, streams=True, error=AnthropicErrorResponse
        ),
    )
    async def create_message(request: Request) -> Response:
        """Create a message."""
        body = await models.bodies.read(request, MessagesRequest)
        frontend = models.choose(body.model)
        _require_reasoning(frontend, body)
        chat = await frontend.prepare(request, lambda token: to_chat(body))
        with errors_in_words(ERROR_WORDS):
            return await serve_chat(request, frontend, chat, MessageWriter)

    @router.post(
        "/v1/messages/count_tokens",
        **documented(MessageTokensCount, BODY_ERRORS, body=CountTokensRequest, error=AnthropicErrorResponse),
    )
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a message's prompt, without a message."""
        body = await models.bodies.read(request, CountTokensRequest)
        frontend = models.choose(body.model)
        _require_reasoning(frontend, body)
        with errors_in_words(ERROR_WORDS):
            ids, _ = await frontend.run(
                request, lambda token: render_chat(frontend.prompts, to_chat_prompt(body), token, whole=True)
            )
        return JSONResponse(MessageTokensCount(len(ids)))

    @router.api_route("/v1/messages/batches", methods=["GET", "POST"], include_in_schema=False)
    async def refuse_batches() -> Response:
        message = "message batches are not supported; send concurrent requests to POST /v1/messages."
        raise ApiError(404, message, code="not_served")

    return router


def _require_reasoning(frontend: Frontend, body: ConversationFields) -> None:
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    if thinks and not frontend.prompts.chat_format.has_reasoning:
        why = "the served model writes no thinking blocks; omit thinking, or set its type to disabled"
        raise ApiError(400, why, param="thinking", code="unsupported_value")
