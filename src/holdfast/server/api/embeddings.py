"""POST /v1/embeddings: embeddings of texts or token ids, one or a batch."""

import base64
import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.pooling import Pooling, truncate_ids
from holdfast.core.results import unpack_embedding
from holdfast.core.sampling_params import score_params
from holdfast.server.api.model_fields import check_fields, read_fields
from holdfast.server.api.response_fields import usage
from holdfast.server.api.sampling import max_prompt_len, prompt_list
from holdfast.server.api.schema.objects import EmbeddingResponse
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, body_schema, responses
from holdfast.server.api.schema.requests import EmbeddingRequest
from holdfast.server.call import Call
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.sse import JSONResponse


def embedding_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter(tags=["embeddings"])

    @router.post(
        "/v1/embeddings",
        openapi_extra=body_schema(EmbeddingRequest),
        responses=responses(EmbeddingResponse, ENGINE_ERRORS),
    )
    async def embeddings(request: Request) -> Response:
        """Create embeddings of one or several inputs."""
        body = await frontend.read_body(request, EmbeddingRequest)
        inputs = prompt_list(body.input, frontend.config.max_prompts, "input")
        async with frontend.call(
            request, "embeddings", deterministic=body.deterministic, num_choices=len(inputs)
        ) as call:
            await run_until_disconnect(request, _run(frontend, call, inputs, body))
            call.finished(["length"] * len(inputs))
            head = {
                "object": "list",
                "id": f"embd-{call.request_id}",
                "created": int(time.time()),
                "model": frontend.model,
                "system_fingerprint": await call.fingerprint(),
            }
            # A million numbers take long to write.
            return await frontend.prepare(
                request, lambda token: JSONResponse({**head, **_result(call, body)})
            )

    return router


async def _run(frontend: Frontend, call: Call, inputs: list[str | list[int]], body: EmbeddingRequest) -> None:
    """Submit every input and wait for all results."""
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


def _result(call: Call, body: EmbeddingRequest) -> dict[str, Any]:
    counts = usage(call)
    del counts["completion_tokens"]
    each = [{"mode": result.determinism, "stats": asdict(result.stats)} for result in call.results]
    several = {"mode": call.mode, "stats": asdict(call.stats), "requests": each}
    return {
        "data": [
            {"object": "embedding", "index": index, "embedding": _encode(result.embedding or b"", body)}
            for index, result in enumerate(call.results)
        ],
        "usage": counts,
        "holdfast": each[0] if len(each) == 1 else several,
    }


def _encode(embedding: bytes, body: EmbeddingRequest) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(embedding).decode("ascii")
    return unpack_embedding(embedding)
