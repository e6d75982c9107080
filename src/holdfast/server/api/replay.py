"""POST /v1/replay: ask a receipt's request again, here and now, and compare every bit."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Choice, Delta, Result
from holdfast.engine.replay import Replay, compare_result, require_prompt
from holdfast.errors import HoldfastError
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import Receipt
from holdfast.server.api.response_fields import usage
from holdfast.server.api.schema.openapi import ASKED, body_schema, responses
from holdfast.server.api.schema.requests import ReplayRequest
from holdfast.server.api.schema.responses import ReplayResponse
from holdfast.server.call import Call
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.json_body import read_body
from holdfast.server.http.responses import JSONResponse


def replay_routes(front: Frontend) -> APIRouter:
    router = APIRouter(tags=["reproducibility"])

    @router.post(
        "/v1/replay", openapi_extra=body_schema(ReplayRequest), responses=responses(ReplayResponse, ASKED)
    )
    async def replay(request: Request) -> Response:
        """Replay a receipt. Where the fingerprints differ nothing is run unless `force` says so."""
        body = await read_body(request, ReplayRequest)
        try:
            receipt, prompt_ids = await front.prompts.run_in_thread(lambda: _read(body))
            front.prompts.require_room(len(prompt_ids))
        except HoldfastError as error:
            raise to_api_error(error) from None
        if receipt.params.n > front.config.max_choices:
            raise ApiError(400, f"n must be at most {front.config.max_choices}", param="receipt")
        named = await front.fingerprint()
        differences = Fingerprint(named.parts).differences(receipt.fingerprint, here="here")
        answer = _answer(receipt, differences)
        if differences and not body.force:
            return JSONResponse(answer)
        params = replace(receipt.params, seed=receipt.seed)
        async with front.call(
            request, "replay", deterministic=params.deterministic, num_choices=params.n
        ) as call:
            await call.submit(prompt_ids, params, want_receipt=True)
            result = await run_until_disconnect(request, _run(call, params.n))
            call.finished([choice.finish_reason for choice in result.choices])
            try:
                outcome = compare_result(receipt, result, front.prompts.token_text)
            except HoldfastError as error:
                raise to_api_error(error) from None
            return JSONResponse({**answer, **_compared(outcome), "usage": usage(call)})

    return router


def _read(body: ReplayRequest) -> tuple[Receipt, list[int]]:
    receipt = parse_receipt(body.receipt)
    return receipt, require_prompt(receipt, body.prompt_token_ids)


async def _run(call: Call, num_choices: int) -> Result:
    """The new result, with its choices put together from their deltas."""
    await call.accepted()
    deltas: list[list[Delta]] = [[] for _ in range(num_choices)]
    async for _, delta in call.deltas():
        if delta is not None:
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


def _answer(receipt: Receipt, differences: list[str]) -> dict[str, Any]:
    """Before anything was compared."""
    return {
        "object": "holdfast.replay",
        "same": False,
        "compared": False,
        "promised": receipt.mode != "none",
        "fingerprint_differences": differences,
        "difference": None,
        "mode": None,
    }


def _compared(outcome: Replay) -> dict[str, Any]:
    first = outcome.difference
    return {
        "same": outcome.same,
        "compared": True,
        "difference": None
        if first is None
        else {"choice": first.choice, "position": first.position, "what": first.what},
        "mode": outcome.mode,
        "num_tokens": outcome.num_tokens,
        "num_logprobs": outcome.num_logprobs,
    }
