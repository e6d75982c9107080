"""POST /tokenize and /detokenize, answered by the frontend's own tokenizer without the engine."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.server.api.chat_prompt import ChatPrompts
from holdfast.server.api.schema.openapi import BODY_ERRORS, body_schema, responses
from holdfast.server.api.schema.requests import DetokenizeRequest, TokenizeRequest
from holdfast.server.api.schema.responses import DetokenizeResponse, TokenizeResponse
from holdfast.server.errors import to_api_error
from holdfast.server.frontend import Frontend
from holdfast.server.http.json_body import read_body
from holdfast.server.http.responses import JSONResponse


def token_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter(tags=["tokens"])
    chat_prompts = ChatPrompts(frontend.prompts)

    @router.post(
        "/tokenize",
        openapi_extra=body_schema(TokenizeRequest),
        responses=responses(TokenizeResponse, BODY_ERRORS),
    )
    async def tokenize(request: Request) -> Response:
        """Tokenize a text or a conversation."""
        body = await read_body(request, TokenizeRequest)
        frontend.require_model(body.model)
        try:
            ids = await _encode(frontend, chat_prompts, body)
        except HoldfastError as error:
            raise to_api_error(error) from None
        response: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": frontend.prompts.max_model_len,
            "tokens": ids,
        }
        if body.return_token_strs:
            response["token_strs"] = [frontend.prompts.token_text(one) for one in ids]
        return JSONResponse(response)

    @router.post(
        "/detokenize",
        openapi_extra=body_schema(DetokenizeRequest),
        responses=responses(DetokenizeResponse, BODY_ERRORS),
    )
    async def detokenize(request: Request) -> Response:
        """Decode token ids."""
        body = await read_body(request, DetokenizeRequest)
        frontend.require_model(body.model)
        try:
            text = await frontend.prompts.decode(
                body.tokens, skip_special_tokens=bool(body.skip_special_tokens)
            )
        except HoldfastError as error:
            raise to_api_error(error) from None
        return JSONResponse({"prompt": text})

    return router


async def _encode(frontend: Frontend, chat_prompts: ChatPrompts, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("exactly one of prompt and messages is required")
    if body.prompt is None:
        return await chat_prompts.tokenize(body)
    if body.tools is not None:
        raise InvalidRequest("tools require messages; a prompt is tokenized unchanged")
    return await frontend.prompts.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
