"""The models of one server: a `Frontend` for each, and what they share.

They share access, limits per minute, files and batches, and the reader of bodies. Each has an engine
process, places, metrics and a tokenizer of its own. A request goes to the model that its body names.

`main.HttpServer` serves them over HTTP, `holdfast.ray` one behind Ray's proxy.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, EngineStopped, NotReady
from holdfast.server.config import RELOADED, ModelConfig, ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Connect, Frontend
from holdfast.server.http.body import BodyReader
from holdfast.server.middleware.request_log import AccessLogEntry
from holdfast.server.telemetry.logs import current_model
from holdfast.server.telemetry.metrics import ServerMetrics
from holdfast.server.tenants.admission import RateLimits
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import Tenant, tenant_of

if TYPE_CHECKING:
    from holdfast.server.batches.service import BatchService

_log = logging.getLogger("holdfast.server")
_TRIM_SECONDS = 5.0


class ServedModels:
    """Made in any thread, run in one event loop. connect finds the engine or engines of a model."""

    def __init__(
        self,
        config: ServerConfig,
        models: Sequence[ModelConfig],
        tenants: TenantDirectory,
        connect: Connect,
        progress: ShowProgress = lambda stage, done, total: None,
    ) -> None:
        self.config = config
        self.tenants = tenants
        self.batches: BatchService | None = None  # with --files-dir; `make_app` opens it
        self.bodies = BodyReader()
        rates = RateLimits()
        self.frontends = tuple(
            Frontend(
                config,
                one.engine,
                connect,
                progress,
                names=one.names,
                rates=rates,
                is_alone=len(models) == 1,
            )
            for one in models
        )
        self._by_name = {name: one for one in self.frontends for name in one.names}
        self.metrics = ServerMetrics({one.model: one.metrics for one in self.frontends})

    @property
    def has_several(self) -> bool:
        return len(self.frontends) > 1

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._by_name)

    @property
    def num_calls(self) -> int:
        return sum(one.num_calls for one in self.frontends)

    @property
    def is_open(self) -> bool:
        """Return whether new requests are admitted."""
        return all(one.admission.is_open for one in self.frontends)

    def refuse_requests(self) -> None:
        """Admit no new request."""
        for one in self.frontends:
            one.admission.is_open = False

    def reload(self, config: ServerConfig) -> None:
        """Take keys and limits of a configuration that was read again. Raises `ConfigError`; all stays then."""
        self.tenants.reload(config)
        self.config = replace(self.config, **{name: getattr(config, name) for name in RELOADED})
        for one in self.frontends:
            one.set_limits(self.config)

    def find(self, name: str | None) -> Frontend:
        """Return the model of this name. A server of one model needs none."""
        if name is None and not self.has_several:
            return self.frontends[0]
        if name is None:
            raise ApiError(
                400,
                f"Missing 'model': this server serves {', '.join(self.names)}.",
                param="model",
                code="missing_value",
            )
        if name not in self._by_name:
            shown = name if name.isprintable() and len(name) <= 80 else f"{name[:80]!r}..."
            option = "--model NAME=MODEL" if self.has_several else "--served-model-name"
            raise ApiError(
                404,
                f"The model `{shown}` does not exist; this server serves {', '.join(self.names)}. Its operator can "
                f"name it otherwise: {option}.",
                param="model",
                code="model_not_found",
            )
        return self._by_name[name]

    def find_all(self, name: str | None) -> Sequence[Frontend]:
        """Return the model of this name, or without a name all of them."""
        return self.frontends if name is None else (self.find(name),)

    def choose(self, name: str | None) -> Frontend:
        """Return the model that a body names. What is logged of its request from now on says so."""
        frontend = self.find(name)
        if self.has_several:
            current_model.set(frontend.model)
        return frontend

    async def run(self) -> None:
        """Run the engines until stopped. Raises if a model cannot be started, or if no engine is left.

        Of several models, one that dies too often leaves the others served.
        """
        await asyncio.gather(*map(self._run_engines, self.frontends))

    async def _run_engines(self, frontend: Frontend) -> None:
        if self.has_several:
            current_model.set(frontend.model)
        try:
            await frontend.engines.run()
        except (ConfigError, EngineStopped) as error:
            if not self.has_several:
                raise
            if isinstance(error, ConfigError) and not frontend.load_seconds:
                raise ConfigError(f"{frontend.what}: {error}") from error
            frontend.is_given_up = True
            if all(one.is_given_up for one in self.frontends):
                raise
            _log.error("%s; the other models are served on", error)

    async def refresh_status(self) -> None:
        """Request the numbers of every engine that is there; the metrics get them."""

        async def refresh(frontend: Frontend) -> None:
            with contextlib.suppress(NotReady, EngineStopped):
                await frontend.engines.refresh_status()

        await asyncio.gather(*map(refresh, self.frontends))

    def count_request(self, tenant: Tenant, entry: AccessLogEntry) -> None:
        self.metrics.tenants.ended(
            tenant,
            refusal=entry.error if entry.status >= 400 else None,
            num_prompt_tokens=entry.prompt_tokens or 0,
            num_generated_tokens=entry.completion_tokens or 0,
        )

    def render_metrics(self, request: Request) -> tuple[bytes, str]:
        """Return the metrics that this client may see, with their content type. Without keys there is one
        series, and all see it."""
        for one in self.frontends:
            one.metrics.replicas = one.engines.replicas
        self.metrics.tenants.set_places(place for one in self.frontends for place in one.places)
        return self.metrics.render(request.headers.get("accept", ""), tenant_of(request))

    def cut_off(self) -> None:
        """End every running call."""
        for one in self.frontends:
            one.cut_off()

    async def stop(self) -> None:
        """End the engines. Running requests are dropped."""
        await asyncio.gather(*(one.engines.stop() for one in self.frontends))

    def close(self) -> None:
        self.bodies.close()
        for one in self.frontends:
            one.close()

    async def warm_up(self) -> None:
        """Do now what the first prompt would wait for."""
        for one in self.frontends:
            await one.prompts.warm_up()

    async def trim_memory(self) -> None:
        """Give memory back once no call runs. glibc keeps freed memory for later; elsewhere do nothing."""
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        num_seen = 0
        while malloc_trim is not None:
            await asyncio.sleep(_TRIM_SECONDS)
            num_begun = sum(one.num_begun for one in self.frontends)
            if not self.num_calls and num_begun > num_seen:
                num_seen = num_begun
                gc.collect()
                await asyncio.to_thread(malloc_trim, 0)
