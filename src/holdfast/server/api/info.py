"""GET routes that say what the server is and how it does: health, version, models, certificate, metrics."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from holdfast.errors import EngineStopped
from holdfast.server.api.schema.openapi import NEEDS_NO_KEY, READ, responses
from holdfast.server.api.schema.responses import (
    CertificateResponse,
    HealthResponse,
    ModelInfo,
    ModelList,
    VersionResponse,
)
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Frontend
from holdfast.server.http.responses import JSONResponse
from holdfast.version import __version__

_STATUS_SECONDS = 2.0


def about_routes(front: Frontend) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get(
        "/health",
        openapi_extra=NEEDS_NO_KEY,
        responses={
            **responses(HealthResponse, ()),
            503: {"model": HealthResponse, "description": "Not now."},
        },
    )
    async def health() -> Response:
        """200 if a request would be answered now, 503 if not. Needs no key."""
        if not front.admission.is_open:
            return JSONResponse({"status": "draining"}, 503, {"Retry-After": "5"})
        if not front.supervisor.is_ready:
            return JSONResponse({"status": "starting"}, 503, {"Retry-After": "5"})
        if front.supervisor.is_stuck:
            return JSONResponse({"status": "stuck"}, 503, {"Retry-After": "5"})
        return JSONResponse({"status": "ok"})

    @router.get("/version", responses=responses(VersionResponse, READ))
    async def version() -> Response:
        """The server's own version."""
        return JSONResponse({"version": __version__})

    @router.get("/v1/models", responses=responses(ModelList, READ))
    async def models() -> Response:
        """The model that is served, under each of its names."""
        return JSONResponse({"object": "list", "data": [_model(front, name) for name in front.names]})

    @router.get("/v1/models/{name:path}", responses=responses(ModelInfo, (*READ, 404)))
    async def model(name: str) -> Response:
        """One model."""
        front.require_model(name)
        return JSONResponse(_model(front, name))

    @router.get("/v1/certificate", responses=responses(CertificateResponse, (*READ, 503)))
    async def certificate() -> Response:
        """What the engine was certified for on this machine, and its fingerprint."""
        link = front.supervisor.link
        assert link.ready is not None
        named = await front.fingerprint()
        return JSONResponse(
            {
                "object": "holdfast.certificate",
                "determinism": link.ready.determinism,
                "refusal": link.ready.refusal,
                "fingerprint": {"digest": named.digest, "parts": named.parts},
                "certificate": link.ready.certificate if link.revocation is None else None,
                "revocation": link.revocation,
            }
        )

    @router.get("/metrics", response_class=PlainTextResponse, responses=responses(None, READ))
    async def metrics(request: Request) -> Response:
        """For Prometheus."""
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                await front.supervisor.link.status()  # the listener tells the metrics
        except (ApiError, EngineStopped, TimeoutError):
            pass  # the last known figures are better than none
        text, media_type = front.metrics.render(request.headers.get("accept", ""))
        return Response(text, media_type=media_type)

    return router


def _model(front: Frontend, name: str) -> dict[str, Any]:
    ready = front.supervisor.link.ready if front.supervisor.is_ready else None
    return {
        "id": name,
        "object": "model",
        "created": front.created,
        "owned_by": "holdfast",
        "root": front.model,
        "max_model_len": None if ready is None else ready.max_model_len,
    }
