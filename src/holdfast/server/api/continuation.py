"""POST /v1/continue: the rest of an answer, from its receipt, or from its request and token ids.

The tokens of a deterministic answer are confirmed first, with every bit of their logprobs if there is
a receipt. Nothing is sent before that, so that a contradiction is a 409. The response is that of the
request's own route, for a receipt that of a completion. It has what follows what the client has.
"""

from contextlib import AsyncExitStack

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.engine.replay import continued_params, sent_of
from holdfast.receipts.receipt import Receipt
from holdfast.server.api.chat import chat_completion
from holdfast.server.api.completions import CompletionResponse, complete, send_completion
from holdfast.server.api.replay import find_differences, read_receipt, require_limits
from holdfast.server.api.sampling import submit_sent
from holdfast.server.api.schema.objects import ChatCompletion, Completion
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, documented
from holdfast.server.api.schema.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    ContinueBody,
    ContinueRequest,
    ContinueTokensRequest,
)
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.served_models import ServedModels


def continuation_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["reproducibility"])

    @router.post(
        "/v1/continue",
        **documented((Completion, ChatCompletion), (*ENGINE_ERRORS, 409), body=ContinueBody, streams=True),
    )
    async def continue_answer(request: Request) -> Response:
        """Continue an answer, after what the client has of a deterministic one was confirmed."""
        whole = await models.bodies.read(request, ContinueBody)
        frontend = models.choose(whole.model)
        body = whole.root
        if isinstance(body, ContinueTokensRequest):
            if isinstance(body.request, ChatCompletionRequest):
                return await chat_completion(request, frontend, body.request, body.token_ids)
            return await complete(request, frontend, body.request, body.token_ids)
        receipt, _, prompt_ids = await read_receipt(request, frontend, body)
        params = continued_params(receipt, body.max_tokens)
        frontend.prompts.require_room(len(prompt_ids))
        sent = await frontend.prepare(
            request, lambda token: _sent_answer(frontend, receipt, prompt_ids, params)
        )
        require_limits(receipt, frontend.config)
        completion = _completion_request(body, prompt_ids, params)
        if not body.force:
            await _require_fingerprint(frontend, receipt)
        async with AsyncExitStack() as stack:
            call = await stack.enter_async_context(
                frontend.call(
                    request,
                    "text_completion",
                    deterministic=True,
                    num_choices=params.n,
                    stream=bool(body.stream),
                )
            )
            await run_until_disconnect(request, submit_sent(call, completion, prompt_ids, params, sent))
            response = CompletionResponse(frontend, call, completion, params)
            return await send_completion(request, response, stack)

    return router


def _sent_answer(
    frontend: Frontend, receipt: Receipt, prompt_ids: list[int], params: SamplingParams
) -> tuple[Sent, ...]:
    extension = frontend.ready.extension
    return sent_of(receipt, prompt_ids, frontend.prompts.tokenizer, params.max_tokens, extension=extension)


def _completion_request(
    body: ContinueRequest, prompt_ids: list[int], params: SamplingParams
) -> CompletionRequest:
    shared = {
        name: getattr(body, name)
        for name in ContinueRequest.model_fields
        if name in CompletionRequest.model_fields
    }
    return CompletionRequest.model_construct(
        **{**shared, "max_tokens": params.max_tokens}, prompt=prompt_ids, n=params.n, logprobs=params.logprobs
    )


async def _require_fingerprint(frontend: Frontend, receipt: Receipt) -> None:
    differences = await find_differences(frontend, receipt)
    if differences:
        raise ApiError(
            409,
            f"the receipt is of another engine ({'; '.join(differences)}), so its bits may not come out here; send it "
            'to a server with its fingerprint, or set "force"',
            param="receipt",
            code="fingerprint_differs",
        )
