"""POST /v1/replay: run a receipt's request again and compare every bit. POST /v1/continue: the rest of an answer,
from its receipt, or from its request and token ids.

To continue a deterministic answer, its tokens are confirmed first, with every bit of their logprobs if there
is a receipt. Nothing is sent before that, so that a contradiction is a 409. The response is that of the
request's own route, for a receipt that of a completion. It has what follows what the client has.
"""

import asyncio
from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Choice, Delta, Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.engine.replay import (
    compare_result,
    continued_params,
    replay_params,
    require_prompt,
    sent_of,
    split_score,
)
from holdfast.receipts.check import ReceiptCheck, check_signature
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import Receipt
from holdfast.receipts.signing import PublicKey
from holdfast.server.api.chat import chat_completion
from holdfast.server.api.completions import CompletionWriter, complete
from holdfast.server.api.response_fields import usage
from holdfast.server.api.sampling import max_prompt_len, submit_sent
from holdfast.server.api.schema.objects import ChatCompletion, Completion, ReplayResponse
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, documented
from holdfast.server.api.schema.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    ContinueBody,
    ContinueRequest,
    ContinueTokensRequest,
    ReceiptFields,
    ReplayRequest,
)
from holdfast.server.call import Call
from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.sse import JSONResponse
from holdfast.server.served_models import ServedModels


def replay_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["reproducibility"])

    @router.post("/v1/replay", **documented(ReplayResponse, ENGINE_ERRORS, body=ReplayRequest))
    async def replay(request: Request) -> Response:
        """Replay a receipt. If the fingerprints differ, the request is run only with `force`."""
        body = await models.bodies.read(request, ReplayRequest)
        frontend = models.choose(body.model)
        receipt, checked, prompt_ids = await _read_receipt(request, frontend, body)
        _require_limits(receipt, frontend.config)
        differences = await _find_differences(frontend, receipt)
        response = ReplayResponse(
            same=False,
            compared=False,
            promised=receipt.mode != "none",
            seal=checked.seal,
            signature=checked.signature,
            fingerprint_differences=differences,
            difference=None,
            mode=None,
        )
        if differences and not body.force:
            return JSONResponse(response)
        async with frontend.call(
            request, "replay", deterministic=receipt.params.deterministic, num_choices=receipt.params.n
        ) as call:
            params = replay_params(receipt, len(prompt_ids), max_prompt_len(frontend))
            prompt_ids, completion_ids = split_score(receipt, prompt_ids)
            await call.submit(prompt_ids, params, completion_ids=completion_ids, want_receipt=True)
            result = await run_until_disconnect(request, _run(call, params.n))
            call.finished([choice.finish_reason for choice in result.choices])
            replayed = compare_result(receipt, result, frontend.prompts.token_text)
            response.same, response.compared = replayed.same, True
            response.difference, response.mode = replayed.difference, replayed.mode
            response.num_tokens, response.num_logprobs = replayed.num_tokens, replayed.num_logprobs
            response.usage = usage(call)
            return JSONResponse(response)

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
        receipt, _, prompt_ids = await _read_receipt(request, frontend, body)
        params = continued_params(receipt, body.max_tokens)
        sent = await frontend.prepare(
            request, lambda token: _sent_answer(frontend, receipt, prompt_ids, params)
        )
        _require_limits(receipt, frontend.config)
        completion = _completion_request(body, prompt_ids, params)
        if not body.force:
            await _require_fingerprint(frontend, receipt)

        async def begin(call: Call) -> CompletionWriter:
            await submit_sent(call, completion, prompt_ids, params, sent)
            return CompletionWriter(frontend, call, completion, params)

        return await frontend.respond(
            request, "text_completion", begin, deterministic=True, num_choices=params.n, stream=body.stream
        )

    return router


async def _read_receipt(
    request: Request, frontend: Frontend, body: ReceiptFields
) -> tuple[Receipt, ReceiptCheck, list[int]]:
    """Return the receipt of a body, what was checked of it, and its prompt."""
    own_key = frontend.ready.receipt_key
    receipt, checked, prompt_ids = await frontend.prepare(request, lambda token: _parse(body, own_key))
    frontend.prompts.require_room(len(prompt_ids))
    return receipt, checked, prompt_ids


async def _find_differences(frontend: Frontend, receipt: Receipt) -> list[str]:
    """Return what decides the receipt's bits and is another here. A grammar library is tried in a thread."""
    here = Fingerprint.of((await frontend.fingerprint()).parts)
    return await asyncio.to_thread(receipt.differences, here)


def _require_limits(receipt: Receipt, config: ServerConfig) -> None:
    """Refuse a receipt whose request this server would refuse, or whose answers are no answers to
    it."""
    params = receipt.params
    limits = (
        ("n", params.n, config.max_choices),
        ("number of stop strings", len(params.stop_strings), config.max_stops),
        ("number of choices", len(receipt.choices), params.n),
        (
            "longest answer in tokens",
            max((len(choice.token_ids) for choice in receipt.choices), default=0),
            params.max_tokens,
        ),
    )
    for what, given, limit in limits:
        if given > limit:
            message = f"the receipt's {what} is {given}; at most {limit} is allowed"
            raise ApiError(400, message, param="receipt", code="invalid_value")


def _parse(body: ReceiptFields, own_key: str | None) -> tuple[Receipt, ReceiptCheck, list[int]]:
    """Parse a body's receipt. Its signature is checked if it names our own key: no other key is known here."""
    receipt = parse_receipt(body.receipt)
    own = None if own_key is None else PublicKey.parse(own_key.encode())
    is_own = own is not None and receipt.signer is not None and receipt.signer.key_id == own.key_id
    checked = check_signature(receipt, own if is_own else None)
    return receipt, checked, require_prompt(receipt, body.prompt_token_ids, body.prompt_salt)


async def _run(call: Call, num_choices: int) -> Result:
    """Return the new result, with its choices merged from their deltas."""
    await call.accepted()
    deltas: list[list[Delta]] = [[] for _ in range(num_choices)]
    async for batch in call.batches():
        for _, delta in batch:
            deltas[delta.index].append(delta)
    choices = tuple(_choice(one) for one in deltas)
    return replace(call.results[0], prompt_token_ids=tuple(call.prompts[0]), choices=choices)


def _choice(deltas: list[Delta]) -> Choice:
    return Choice(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(id_ for delta in deltas for id_ in delta.token_ids),
        finish_reason=next(delta.finish_reason for delta in deltas if delta.finish_reason is not None),
        logprobs=tuple(one for delta in deltas for one in delta.logprobs or ())
        if any(delta.logprobs is not None for delta in deltas)
        else None,
    )


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
    differences = await _find_differences(frontend, receipt)
    if differences:
        raise ApiError(
            409,
            f"the receipt is of another engine ({'; '.join(differences)}), so its bits may not come out here; send it "
            'to a server with its fingerprint, or set "force"',
            param="receipt",
            code="fingerprint_differs",
        )
