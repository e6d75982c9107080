"""POST /v1/embeddings: embeddings of texts or token ids, one or a batch."""

import base64
import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.pooling import Pooling, truncate_ids
from holdfast.core.results import unpack_embedding
from holdfast.core.sampling_params import score_params
from holdfast.server.api.model_fields import check_fields, read_fields
from holdfast.server.api.response_fields import num_cached_tokens
from holdfast.server.api.sampling import max_prompt_len, prompt_list
from holdfast.server.api.schema.objects import (
    EmbeddingData,
    EmbeddingDetails,
    EmbeddingRequestDetails,
    EmbeddingResponse,
    EmbeddingUsage,
    PromptTokensDetails,
)
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, documented
from holdfast.server.api.schema.requests import EmbeddingRequest
from holdfast.server.call import Call
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.sse import JSONResponse
from holdfast.server.served_models import ServedModels


def embedding_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["embeddings"])

    @router.post("/v1/embeddings", **documented(EmbeddingResponse, ENGINE_ERRORS, body=EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        """Create embeddings of one or several inputs."""
        body = await models.bodies.read(request, EmbeddingRequest)
        frontend = models.choose(body.model)
        inputs = prompt_list(body.input, frontend.config.max_prompts, "input")
        async with frontend.call(
            request, "embeddings", deterministic=body.deterministic, num_choices=len(inputs)
        ) as call:
            await run_until_disconnect(request, _run(frontend, call, inputs, body))
            call.finished(["length"] * len(inputs))
            fingerprint = await call.fingerprint()
            # A million numbers take long to write.
            return await frontend.prepare(
                request, lambda token: JSONResponse(_result(frontend.model, fingerprint, call, body))
            )

    return router


async def _run(frontend: Frontend, call: Call, inputs: list[str | list[int]], body: EmbeddingRequest) -> None:
    check_fields(call, body)
    add_special_tokens = body.add_special_tokens is not False
    params = score_params(deterministic=body.deterministic, **read_fields(body))
    pooling = Pooling(body.pooling or "last", body.normalize is not False, body.dimensions)
    whole = body.truncate_prompt_tokens is not None
    for one in inputs:
        ids = (
            await call.encode(one, add_special_tokens=add_special_tokens, whole=whole)
            if isinstance(one, str)
            else one
        )
        ids = list(truncate_ids(ids, body.truncate_prompt_tokens, max_prompt_len(frontend)))
        frontend.prompts.require_room(len(ids))
        await call.submit(ids, params, pooling=pooling, cache_salt=body.cache_salt)
    await call.accepted()
    async for _ in call.batches():
        pass


def _result(model: str, fingerprint: str, call: Call, body: EmbeddingRequest) -> EmbeddingResponse:
    each = [EmbeddingRequestDetails(result.determinism, result.stats) for result in call.results]
    num_tokens, cached = call.num_prompt_tokens, PromptTokensDetails(num_cached_tokens(call))
    return EmbeddingResponse(
        id=f"embd-{call.request_id}",
        created=int(time.time()),
        model=model,
        system_fingerprint=fingerprint,
        data=[
            EmbeddingData(index, _encode(result.embedding or b"", body))
            for index, result in enumerate(call.results)
        ],
        usage=EmbeddingUsage(num_tokens, num_tokens, cached),
        holdfast=EmbeddingDetails(call.mode, call.stats, each if len(each) > 1 else None),
    )


def _encode(embedding: bytes, body: EmbeddingRequest) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(embedding).decode("ascii")
    return unpack_embedding(embedding)
