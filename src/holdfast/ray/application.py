"""The Ray Serve application: frontends behind Ray's HTTP proxy, engine replicas behind them.

    serve run holdfast.ray:build model=smollm2 replicas=2
    serve deploy holdfast.yaml            import_path: holdfast.ray:build, the options under args

Arguments are the options of `holdfast serve`, by their names. Those of the HTTP server itself belong to Ray's
proxy and are refused.
"""

import asyncio
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from ray import serve

from holdfast.core.options import OptionField, option_fields
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.ray.config import ReplicasConfig
from holdfast.ray.deployment import engine_app
from holdfast.ray.pool import ReplicaPool
from holdfast.server.app import make_app
from holdfast.server.config import ModelConfig, ServerConfig
from holdfast.server.served_models import ServedModels
from holdfast.server.telemetry.logs import configure_logging
from holdfast.server.tenants.directory import TenantDirectory

FRONTEND = "Frontend"
_MAX_ONGOING = 1 << 16  # the frontend's own limits refuse requests, with a reason
_DRAIN_SECONDS = 60.0
_START_SECONDS = 0.05
# Options that Ray's proxy replaces, and where it has them.
PROXY_OPTIONS = {
    "host": "http_options: host",
    "port": "http_options: port",
    "keep_alive_timeout": "http_options: keep_alive_timeout_s",
    "max_connections": "the load balancer before the proxy",
    "files_dir": "a server of its own, with holdfast serve",
    "drain_timeout": "the deployment Frontend: graceful_shutdown_timeout_s",
    "ray_address": "the address that serve run or serve deploy is given",
}

C = TypeVar("C")


class FrontendReplica:
    """One frontend: routes, limits, tokenizer, and a pool of engine replicas of its own."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, server: ServerConfig, engine: EngineConfig, replicas: ReplicasConfig, handle: Any
    ) -> None:
        tenants = TenantDirectory(server)
        configure_logging(server.log_format, server.log_level, secrets=tenants.keys)
        application = serve.get_replica_context().app_name
        fingerprint = replicas.application_fingerprint
        self._models = ServedModels(
            server,
            [ModelConfig(engine, server.served_model_names)],
            tenants,
            lambda *given: ReplicaPool(application, *given, fingerprint=fingerprint, handle=handle),
        )
        self._running = asyncio.create_task(self._models.run())
        self._background = [
            asyncio.create_task(work) for work in (self._models.warm_up(), self._models.trim_memory())
        ]
        while not self._models.frontends[0].engines.is_ready:
            await asyncio.wait((self._running,), timeout=_START_SECONDS)
            self.check_health()

    def __serve_build_asgi_app__(self) -> Any:
        return make_app(self._models)

    def check_health(self) -> None:
        """Raises if the pool has ended."""
        if self._running.done():
            error = None if self._running.cancelled() else self._running.exception()
            raise EngineStopped(f"the frontend has no engines any more{f': {error}' if error else ''}")

    async def __del__(self) -> None:
        models = getattr(self, "_models", None)
        if models is None:
            return
        models.refuse_requests()
        models.frontends[0].hub.close()
        models.cut_off()
        await models.stop()
        await asyncio.wait((self._running,))
        for task in self._background:
            task.cancel()
        models.close()


def build(args: Mapping[str, Any]) -> serve.Application:
    """Make the application of these options. Raises `ConfigError`."""
    server, engine, replicas = read_options(args)
    frontend = serve.deployment(serve.ingress()(FrontendReplica)).options(
        name=FRONTEND,
        max_ongoing_requests=_MAX_ONGOING,
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
        ray_actor_options={"num_cpus": 1},
    )
    app: serve.Application = frontend.bind(server, engine, replicas, engine_app(engine, replicas, server))
    return app


def read_options(args: Mapping[str, Any]) -> tuple[ServerConfig, EngineConfig, ReplicasConfig]:
    """Make the configurations of arguments by name, which are values or text."""
    given = {name.replace("-", "_"): value for name, value in args.items()}
    model = given.pop("model", None)
    for name in given:
        if name in PROXY_OPTIONS:
            raise ConfigError(f"{name} is not an option of an application on Ray; set {PROXY_OPTIONS[name]}")
    known = {
        name: one
        for config in (ServerConfig, EngineConfig, ReplicasConfig)
        for one in option_fields(config)
        for name in (one.name, one.field_name)
    }
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ConfigError(f"there is no option {name}{f'; did you mean {near[0]}?' if near else ''}")
    values = {known[name].field_name: _convert(known[name], value) for name, value in given.items()}
    values.setdefault("inspector", False)
    return (
        _make(ServerConfig, values),
        _make(EngineConfig, {**values, "model": model}),
        _make(ReplicasConfig, {"replicas": 1, **values}),
    )


def _make(config: type[C], values: Mapping[str, Any]) -> C:
    names = {one.field_name for one in option_fields(config)} | (
        {"model"} if config is EngineConfig else set()
    )
    return config(**{name: value for name, value in values.items() if name in names})


def _convert(one: OptionField, value: Any) -> Any:
    """Convert a value to the option's type; `serve run name=value` gives text."""
    if isinstance(value, str) and one.type == tuple[str, ...]:
        value = [part.strip() for part in value.split(",")]
    try:
        return msgspec.convert(value, one.type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{one.name}: {str(error)[:1].lower()}{str(error)[1:]}, not {value!r}") from None
