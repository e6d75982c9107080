"""POST /v1/replay: run a receipt's request again and compare every bit."""

import asyncio
from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Choice, Delta, Result
from holdfast.engine.replay import compare_result, replay_params, require_prompt, split_score
from holdfast.receipts.check import ReceiptCheck, check_signature
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import Receipt
from holdfast.receipts.signing import PublicKey
from holdfast.server.api.response_fields import usage
from holdfast.server.api.sampling import max_prompt_len
from holdfast.server.api.schema.objects import ReplayResponse
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, documented
from holdfast.server.api.schema.requests import ReceiptFields, ReplayRequest
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
        receipt, checked, prompt_ids = await read_receipt(request, frontend, body)
        require_limits(receipt, frontend.config)
        differences = await find_differences(frontend, receipt)
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

    return router


async def read_receipt(
    request: Request, frontend: Frontend, body: ReceiptFields
) -> tuple[Receipt, ReceiptCheck, list[int]]:
    """Return the receipt of a body, what was checked of it, and its prompt."""
    own_key = frontend.ready.receipt_key
    receipt, checked, prompt_ids = await frontend.prepare(request, lambda token: _parse(body, own_key))
    frontend.prompts.require_room(len(prompt_ids))
    return receipt, checked, prompt_ids


async def find_differences(frontend: Frontend, receipt: Receipt) -> list[str]:
    """Return what decides the receipt's bits and is another here. A grammar library is tried in a thread."""
    here = Fingerprint.of((await frontend.fingerprint()).parts)
    return await asyncio.to_thread(receipt.differences, here)


def require_limits(receipt: Receipt, config: ServerConfig) -> None:
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
