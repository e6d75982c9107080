"""OpenAI routes that this server does not have. The error says what to use instead."""

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
