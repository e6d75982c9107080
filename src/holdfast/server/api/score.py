"""POST /v1/score: the logprobs of a given completion, bitwise equal to those of its generation."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.sampling_params import score_params
from holdfast.server.api.model_fields import check_fields, read_fields
from holdfast.server.api.response_fields import finite, holdfast_object, usage
from holdfast.server.api.schema.objects import ScoreResponse
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, documented
from holdfast.server.api.schema.requests import ScoreRequest
from holdfast.server.call import Call
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.sse import JSONResponse
from holdfast.server.served_models import ServedModels


def score_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["reproducibility"])

    @router.post("/v1/score", **documented(ScoreResponse, ENGINE_ERRORS, body=ScoreRequest))
    async def score(request: Request) -> Response:
        """Score a completion. A text completion is tokenized by itself, without special tokens."""
        body = await models.bodies.read(request, ScoreRequest)
        frontend = models.choose(body.model)
        deterministic = body.deterministic is not False
        async with frontend.call(request, "score", deterministic=deterministic, num_choices=1) as call:
            completion_ids = await run_until_disconnect(request, _run(frontend, call, body, deterministic))
            call.finished(["length"])
            scored = call.results[0].prompt_logprobs or ()
            logprobs = [finite(one.logprob) for one in scored if one is not None]
            return JSONResponse(
                ScoreResponse(
                    model=frontend.model,
                    system_fingerprint=await call.fingerprint(),
                    token_ids=completion_ids,
                    tokens=[frontend.prompts.token_text(one) for one in completion_ids],
                    logprobs=logprobs,
                    sum=sum(logprobs),
                    usage=usage(call),
                    holdfast=holdfast_object(call),
                )
            )

    return router


async def _run(frontend: Frontend, call: Call, body: ScoreRequest, deterministic: bool) -> list[int]:
    check_fields(call, body)
    prompt_ids, completion_ids = body.prompt, body.completion
    if isinstance(prompt_ids, str):
        prompt_ids = await call.encode(prompt_ids)
    if isinstance(completion_ids, str):
        completion_ids = await call.encode(completion_ids, add_special_tokens=False)
    frontend.prompts.require_room(len(prompt_ids) + len(completion_ids))
    params = score_params(deterministic=deterministic, **read_fields(body))
    await call.submit(
        prompt_ids,
        params,
        completion_ids=completion_ids,
        want_receipt=bool(body.return_receipt),
    )
    await call.accepted()
    async for _ in call.batches():
        pass
    return completion_ids
