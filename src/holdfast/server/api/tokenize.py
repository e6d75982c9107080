"""POST /tokenize and /detokenize. The front has its own tokenizer, so the engine is not asked."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.server.api.chat_prompt import ChatPrompts
from holdfast.server.api.schema.openapi import WRITTEN, body_schema, responses
from holdfast.server.api.schema.requests import DetokenizeRequest, TokenizeRequest
from holdfast.server.api.schema.responses import DetokenizeResponse, TokenizeResponse
from holdfast.server.errors import to_api_error
from holdfast.server.frontend import Frontend
from holdfast.server.http.json_body import read_body
from holdfast.server.http.responses import JSONResponse


def token_routes(front: Frontend) -> APIRouter:
    router = APIRouter(tags=["tokens"])
    chats = ChatPrompts(front.prompts)

    @router.post(
        "/tokenize",
        openapi_extra=body_schema(TokenizeRequest),
        responses=responses(TokenizeResponse, WRITTEN),
    )
    async def tokenize(request: Request) -> Response:
        """The tokens of a text or of a conversation."""
        body = await read_body(request, TokenizeRequest)
        front.require_model(body.model)
        try:
            ids = await _encode(front, chats, body)
        except HoldfastError as error:
            raise to_api_error(error) from None
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": front.prompts.max_model_len,
            "tokens": ids,
        }
        if body.return_token_strs:
            answer["token_strs"] = [front.prompts.token_text(one) for one in ids]
        return JSONResponse(answer)

    @router.post(
        "/detokenize",
        openapi_extra=body_schema(DetokenizeRequest),
        responses=responses(DetokenizeResponse, WRITTEN),
    )
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        body = await read_body(request, DetokenizeRequest)
        front.require_model(body.model)
        try:
            text = await front.prompts.decode(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
        except HoldfastError as error:
            raise to_api_error(error) from None
        return JSONResponse({"prompt": text})

    return router


async def _encode(front: Frontend, chats: ChatPrompts, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either a prompt or messages")
    if body.prompt is None:
        return await chats.tokenize(body)
    if body.tools is not None:
        raise InvalidRequest("tools need messages; a prompt is tokenised as it is")
    return await front.prompts.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
