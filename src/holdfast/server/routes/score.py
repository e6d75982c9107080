"""POST /v1/score: the logprobs of a completion behind a prompt, the very bits it was generated with."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.params import score_params
from holdfast.errors import HoldfastError
from holdfast.server.call import Call
from holdfast.server.failures import api_error
from holdfast.server.front import Front
from holdfast.server.gate.json_answer import JsonAnswer
from holdfast.server.gate.json_body import body_schema, read_model
from holdfast.server.gate.presence import until_gone
from holdfast.server.routes.reply import finite, holdfast_object, usage
from holdfast.server.routes.thinking import forced_thoughts, require_thinker
from holdfast.server.schema.answers import Score
from holdfast.server.schema.bodies import ScoreBody
from holdfast.server.schema.openapi import ASKED, responses


def score_routes(front: Front) -> APIRouter:
    router = APIRouter(tags=["reproducibility"])

    @router.post("/v1/score", openapi_extra=body_schema(ScoreBody), responses=responses(Score, ASKED))
    async def score(request: Request) -> Response:
        """Score a completion. A text completion is tokenised alone, without special tokens."""
        body = await read_model(request, ScoreBody)
        front.require_model(body.model)
        deterministic = body.deterministic is not False
        async with front.call(request, "score", deterministic=deterministic, num_places=1) as call:
            completion_ids = await until_gone(request, _run(front, call, body, deterministic))
            call.finished(["length"])
            logprobs = [one for one in call.outcomes[0].prompt_logprobs or () if one is not None]
            return JsonAnswer(
                {
                    "object": "holdfast.score",
                    "model": front.model,
                    "system_fingerprint": await call.fingerprint(),
                    "token_ids": completion_ids,
                    "tokens": [front.prompts.token_text(one) for one in completion_ids],
                    "logprobs": [finite(one.logprob) for one in logprobs],
                    "sum": sum(finite(one.logprob) for one in logprobs),
                    "usage": usage(call),
                    "holdfast": holdfast_object(call),
                }
            )

    return router


async def _run(front: Front, call: Call, body: ScoreBody, deterministic: bool) -> list[int]:
    require_thinker(call, body)
    try:
        prompt_ids, completion_ids = body.prompt, body.completion
        if isinstance(prompt_ids, str):
            prompt_ids = await front.prompts.encode(prompt_ids)
        if isinstance(completion_ids, str):
            completion_ids = await front.prompts.encode(completion_ids, add_special_tokens=False)
        front.prompts.require_room(len(prompt_ids) + len(completion_ids))
        params = score_params(
            deterministic=deterministic,
            think=body.think is not False,
            forced_thoughts=forced_thoughts(body.forced_thoughts or {}),
        )
        await call.submit_score(prompt_ids, completion_ids, params, with_receipt=bool(body.return_receipt))
    except HoldfastError as error:
        raise api_error(error) from None
    await call.accepted()
    async for _ in call.pieces():
        pass
    return completion_ids
