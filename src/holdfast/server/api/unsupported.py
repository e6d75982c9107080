"""Routes of OpenAI and of other engines that this server does not have. The error says what to use
instead."""

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.server.errors import ApiError

_INSTEAD = {
    "/v1/moderations": "moderation is not supported",
    "/v1/assistants": "assistants are not supported; use POST /v1/chat/completions",
    "/v1/images/generations": "images are not supported",
    "/v1/audio/speech": "audio is not supported",
    "/v1/audio/transcriptions": "audio is not supported",
    "/v1/files": "files are not supported",
    "/v1/batches": "batches are not supported; send a list of prompts to POST /v1/completions, or concurrent requests",
    **dict.fromkeys(
        ("/generate", "/completion"), "this server has OpenAI's routes; use POST /v1/completions"
    ),
    "/infill": "infilling is not supported",
    "/apply-template": "templates are applied by POST /v1/chat/completions, and by POST /tokenize with messages",
    **dict.fromkeys(
        ("/props", "/slots", "/load"), "use GET /v1/models, GET /v1/certificate and GET /metrics"
    ),
    **dict.fromkeys(
        ("/rerank", "/v1/rerank", "/v2/rerank", "/classify", "/pooling", "/score"),
        "rerankers and classifiers are not supported; POST /v1/embeddings has embeddings, POST /v1/score the logprobs "
        "of a completion",
    ),
}


def unsupported_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for path, why in _INSTEAD.items():
        _add(router, path, why)
    return router


def _add(router: APIRouter, path: str, why: str) -> None:
    @router.api_route(path, methods=["GET", "POST"])
    async def refuse() -> Response:
        raise ApiError(404, f"{why}.", code="not_served")
