"""GET routes about the server: health, version, models, certificate, receipt key,
metrics."""

import asyncio
import time
from contextlib import suppress

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from holdfast.receipts.signing import PublicKey
from holdfast.server.api.schema.objects import (
    CertificateResponse,
    FingerprintInfo,
    HealthResponse,
    LoadResponse,
    ModelInfo,
    ModelList,
    ReceiptKeyResponse,
    ReplicaInfo,
    VersionResponse,
)
from holdfast.server.api.schema.openapi import GET_ERRORS, documented
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Frontend
from holdfast.server.http.sse import JSONResponse
from holdfast.server.ipc.engines import ReplicaStatus
from holdfast.server.served_models import ServedModels
from holdfast.version import __version__

_STATUS_SECONDS = 2.0


def info_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["server"])
    health_document = documented(HealthResponse, (), needs_key=False)
    answered = health_document["responses"]
    answered[503] = {**answered[200], "description": "The server cannot answer requests now."}

    @router.get("/health", **health_document)
    async def health(model: str | None = None) -> Response:
        """Return 200 if requests are answered now, else 503. Requires no API key. Of several models, one that is
        ready is enough; `?model=` asks for one of them."""
        if not models.is_open:
            return JSONResponse(HealthResponse("draining"), 503, {"Retry-After": "5"})
        needs_key = models.config.has_keys  # here everybody asks, and learns no names then
        if needs_key and model is not None and model not in models.names:
            raise ApiError(404, "The model does not exist.", param="model", code="model_not_found")
        asked = models.find_all(model)
        states = {one.model: _state(one) for one in asked}
        state = states[asked[0].model] if len(asked) == 1 else _joined(states, shows_names=not needs_key)
        if state.status in ("ok", "degraded"):
            return JSONResponse(state)
        retry_after = 5 if state.status == "stuck" else min(one.not_ready.retry_after for one in asked)
        return JSONResponse(state, 503, {"Retry-After": str(retry_after)})

    @router.get("/version", **documented(VersionResponse, GET_ERRORS))
    async def version() -> Response:
        """Return the version of Holdfast."""
        return JSONResponse(VersionResponse(__version__))

    @router.get("/load", **documented(LoadResponse, (*GET_ERRORS, 404)))
    async def load(model: str | None = None) -> Response:
        """Return how many requests the server has, as vLLM does; with `?model=`, how many one model has."""
        return JSONResponse(LoadResponse(sum(one.num_calls for one in models.find_all(model))))

    @router.get("/v1/models", name="models", **documented(ModelList, GET_ERRORS))
    async def list_models() -> Response:
        """Return the served models, under each of their names."""
        return JSONResponse(ModelList([_model(models.find(name), name) for name in models.names]))

    @router.get("/v1/models/{name:path}", name="model", **documented(ModelInfo, (*GET_ERRORS, 404)))
    async def show_model(name: str) -> Response:
        """Return one model."""
        return JSONResponse(_model(models.find(name), name))

    @router.get("/v1/certificate", **documented(CertificateResponse, (*GET_ERRORS, 400, 404, 503)))
    async def certificate(model: str | None = None) -> Response:
        """Return the engine's certificate on this machine, and its fingerprint. Of several models, `?model=` says
        which one."""
        frontend = models.find(model)
        if not frontend.engines.is_ready:
            raise frontend.not_ready
        ready = frontend.ready
        named = await frontend.fingerprint()
        return JSONResponse(
            CertificateResponse(
                determinism=frontend.engine.determinism,
                refusal=ready.refusal,
                fingerprint=FingerprintInfo(named.digest, named.parts),
                state=ready.certificate_state,
                certificate=ready.certificate,
                revocation=ready.revocation,
            )
        )

    @router.get("/v1/receipt_key", **documented(ReceiptKeyResponse, (*GET_ERRORS, 404, 503)))
    async def receipt_key() -> Response:
        """Return the public key of the key that signs this server's receipts."""
        ready = next((one for one in models.frontends if one.engines.is_ready), models.frontends[0]).ready
        if ready.receipt_key is None:
            message = "this server's receipts are not signed; start it with --receipt-key"
            raise ApiError(404, message, code="no_receipt_key")
        key = PublicKey.parse(ready.receipt_key.encode())
        return JSONResponse(ReceiptKeyResponse("ed25519", key.key_id, key.pem))

    @router.get("/metrics", response_class=PlainTextResponse, **documented((), GET_ERRORS))
    async def metrics(request: Request) -> Response:
        """Return metrics in Prometheus' text format."""
        with suppress(TimeoutError):  # report the last known values
            async with asyncio.timeout(_STATUS_SECONDS):
                await models.refresh_status()
        text, media_type = models.render_metrics(request)
        return Response(text, media_type=media_type)

    return router


def _joined(states: dict[str, HealthResponse], *, shows_names: bool) -> HealthResponse:
    """Return the state of a server of several models."""
    statuses = [one.status for one in states.values()]
    status = statuses[0] if len(set(statuses)) == 1 or "ok" not in statuses else "degraded"
    return HealthResponse(status, models=states if shows_names else None)


def _state(frontend: Frontend) -> HealthResponse:
    engines = frontend.engines
    if not engines.is_ready:
        return HealthResponse("failed") if frontend.is_given_up else _starting(frontend)
    if engines.is_stuck:
        return HealthResponse("stuck")
    state = HealthResponse("ok", certificate=frontend.ready.certificate_state)
    state.restarts = engines.num_restarts or None
    state.replicas = [_replica(one) for one in engines.replicas] or None
    state.waiting_requests = engines.requests.num_waiting or None
    return state


def _starting(frontend: Frontend) -> HealthResponse:
    engines, stage = frontend.engines, frontend.start_up
    restart = engines.restart
    if restart is None:
        state = HealthResponse("starting", seconds_left=stage.seconds_left)
        if stage.name:
            state.stage, state.done, state.total = stage.name, stage.done, stage.total
        return state
    return HealthResponse(
        "restarting",
        reason=f"the engine process {restart.reason}",
        seconds=round(time.monotonic() - restart.began, 3),
        restarts=engines.num_restarts,
        waiting_requests=engines.requests.num_live,
    )


def _replica(one: ReplicaStatus) -> ReplicaInfo:
    return ReplicaInfo(
        one.id, one.node, one.state, one.fingerprint, one.is_deterministic, one.num_requests, one.version
    )


def _model(frontend: Frontend, name: str) -> ModelInfo:
    ready = frontend.ready if frontend.engines.is_ready else None
    return ModelInfo(
        id=name,
        created=frontend.created,
        owned_by="holdfast",
        root=frontend.model,
        max_model_len=None if ready is None else ready.max_model_len,
        about=frontend.about,
    )
