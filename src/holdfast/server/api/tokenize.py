"""POST /tokenize, POST /detokenize and GET /tokenizer_info, answered by the frontend's own tokenizer
without the engine."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.cancel_token import CancelToken, in_slices
from holdfast.errors import InvalidRequest
from holdfast.server.api.chat_plan import render_chat
from holdfast.server.api.schema.objects import DetokenizeResponse, TokenizeResponse, TokenizerInfo
from holdfast.server.api.schema.openapi import BODY_ERRORS, GET_ERRORS, documented
from holdfast.server.api.schema.requests import ChatCompletionRequest, DetokenizeRequest, TokenizeRequest
from holdfast.server.http.sse import JSONResponse
from holdfast.server.prompts import PromptReader
from holdfast.server.served_models import ServedModels

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def token_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize", **documented(TokenizeResponse, BODY_ERRORS, body=TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """Tokenize a text or a conversation."""
        body = await models.bodies.read(request, TokenizeRequest)
        frontend = models.choose(body.model)
        return await frontend.run(
            request, lambda token: JSONResponse(_tokenize(frontend.prompts, body, token))
        )

    @router.post("/detokenize", **documented(DetokenizeResponse, BODY_ERRORS, body=DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """Decode token ids."""
        body = await models.bodies.read(request, DetokenizeRequest)
        frontend = models.choose(body.model)
        skips = bool(body.skip_special_tokens)

        def decode(token: CancelToken) -> Response:
            text = frontend.prompts.tokenizer.decode(body.tokens, token=token, skip_special_tokens=skips)
            return JSONResponse(DetokenizeResponse(text))

        return await frontend.run(request, decode)

    @router.get("/tokenizer_info", **documented(TokenizerInfo, (*GET_ERRORS, 400, 404)))
    async def tokenizer_info(request: Request, model: str | None = None) -> Response:
        """Return the tokenizer: special tokens, chat template, context."""
        frontend = models.find(model)
        return await frontend.run(request, lambda token: JSONResponse(_describe(frontend.prompts)))

    return router


def _tokenize(prompts: PromptReader, body: TokenizeRequest, token: CancelToken) -> TokenizeResponse:
    ids = _encode(prompts, body, token)
    response = TokenizeResponse(len(ids), prompts.max_model_len, ids)
    if body.return_token_strs:
        response.token_strs = [prompts.token_text(one) for ids in in_slices(ids, token) for one in ids]
    return response


def _encode(prompts: PromptReader, body: TokenizeRequest, token: CancelToken) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("exactly one of prompt and messages is required")
    if not isinstance(body.prompt, str):
        chat = ChatCompletionRequest.model_construct(
            messages=body.messages if body.prompt is None else body.prompt,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return render_chat(prompts, chat, token, whole=True)[0]
    if body.tools is not None:
        raise InvalidRequest("tools require messages; a prompt is tokenized unchanged")
    return prompts.tokenize(
        body.prompt, token, add_special_tokens=body.add_special_tokens is not False, whole=True
    )


def _describe(prompts: PromptReader) -> TokenizerInfo:
    """Return the tokenizer in the words of transformers' tokenizer_config.json, as vLLM serves it."""
    tokenizer = prompts.tokenizer
    named: dict[str, str | None] = {name: tokenizer.special_tokens.get(name) for name in _NAMED}
    if named["eos_token"] is None and tokenizer.eos_token_ids:
        named["eos_token"] = prompts.token_text(min(tokenizer.eos_token_ids))
    special = {id_: prompts.token_text(id_) for id_ in sorted(tokenizer.special_ids)}
    known = set(tokenizer.special_tokens.values())
    added = tokenizer.encode("a")  # with whatever the tokenizer puts around a text
    return TokenizerInfo(
        tokenizer_class=tokenizer.class_name,
        **named,
        additional_special_tokens=[text for text in special.values() if text not in known],
        added_tokens_decoder={str(id_): text for id_, text in special.items()},
        add_bos_token=tokenizer.bos_token_id is not None and added[:1] == [tokenizer.bos_token_id],
        add_eos_token=bool(added) and added[-1] in tokenizer.eos_token_ids,
        clean_up_tokenization_spaces=False,
        model_max_length=prompts.max_model_len,
        chat_template=tokenizer.chat_template,
    )
