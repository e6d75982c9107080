"""The deployment of engine replicas: what one replica is, which resources it has, how it scales."""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import ray
from ray import serve

from holdfast.engine.config import EngineConfig
from holdfast.ray.cluster import gpus_per_replica
from holdfast.ray.config import ReplicasConfig
from holdfast.ray.messages import RoutedRequest
from holdfast.ray.replica_host import ReplicaHost
from holdfast.ray.replica_port import ReplicaAddress
from holdfast.server.config import ServerConfig
from holdfast.server.ipc.engine_process import COMMAND
from holdfast.server.telemetry.logs import configure_logging
from holdfast.version import __version__

ENGINE = "Engine"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_HEALTH_SECONDS, _HEALTH_TIMEOUT = 2.0, 30.0
_DRAIN_POLL = 0.2
_METRICS_SECONDS, _LOOK_BACK_SECONDS = 10.0, 30.0


class EngineReplica:
    """One engine process and its device, in one Ray actor."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        config: EngineConfig,
        log: tuple[str, str] = ("text", "info"),
        hang_timeout: float = 60.0,
        command: Sequence[str] | None = None,
    ) -> None:
        configure_logging(*log)
        # Ray runs this class in an event loop of its own thread, which cannot watch child processes by signals.
        self._host = ReplicaHost(config, log=log, command=command or COMMAND, hang_timeout=hang_timeout)
        self._config = config
        try:
            await self._host.start(ray.util.get_node_ip_address())
        except BaseException:
            await self._host.stop()
            raise

    async def wait_for_end(self, request: RoutedRequest) -> None:
        """Return when a request has ended. It came, and its outputs go, over its frontend's connection."""
        await self._host.wait_for_end(request)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Return what frontends need to know of this replica. Ray sends it to every router."""
        fingerprint = self._host.process.port.fingerprint
        assert fingerprint is not None and self._host.address is not None
        host, port = self._host.address
        info = ReplicaAddress(
            host=host,
            port=port,
            secret=self._host.secret,
            fingerprint=fingerprint.digest,
            config=config_digest(self._config),
            version=__version__,
            node=ray.get_runtime_context().get_node_id(),
        )
        return asdict(info)

    def check_health(self) -> None:
        """Raises if the engine was given up."""
        self._host.check()

    async def __del__(self) -> None:
        host = getattr(self, "_host", None)
        if host is not None:
            await host.drain()  # Ray kills this process after the drain timeout
            await host.stop()


def config_digest(config: EngineConfig) -> str:
    """Digest a configuration. Replicas of one deployment have the same."""
    return hashlib.sha256(msgspec.json.encode(asdict(config), order="deterministic")).hexdigest()[:16]


def engine_app(
    engine: EngineConfig,
    replicas: ReplicasConfig,
    server: ServerConfig,
    command: Sequence[str] | None = None,
) -> serve.Application:
    """Make the application of engine replicas, without an HTTP server. command starts an engine process."""
    num_gpus = gpus_per_replica(engine, replicas)
    max_num_seqs = engine.max_num_seqs or engine.batch_limits("cuda" if num_gpus else "cpu").max_num_seqs
    scaling: dict[str, Any] = {"num_replicas": replicas.replicas or 1}
    if replicas.max_replicas is not None:
        scaling = {
            "autoscaling_config": {
                "min_replicas": replicas.replicas or 1,
                "initial_replicas": replicas.replicas or 1,
                "max_replicas": replicas.max_replicas,
                "target_ongoing_requests": replicas.target_ongoing_requests
                or max(1, math.ceil(0.8 * max_num_seqs)),
                "upscale_delay_s": replicas.upscale_delay,
                "metrics_interval_s": min(_METRICS_SECONDS, max(0.5, replicas.upscale_delay / 2)),
                "look_back_period_s": min(_LOOK_BACK_SECONDS, max(1.0, replicas.upscale_delay)),
                "downscale_delay_s": replicas.downscale_delay,
            }
        }
    deployment = serve.deployment(EngineReplica).options(
        name=ENGINE,
        **scaling,
        max_ongoing_requests=max_num_seqs + server.max_waiting,
        health_check_period_s=_HEALTH_SECONDS,
        health_check_timeout_s=_HEALTH_TIMEOUT,
        graceful_shutdown_timeout_s=replicas.replica_drain_timeout,
        graceful_shutdown_wait_loop_s=_DRAIN_POLL,
        ray_actor_options={
            "num_cpus": replicas.replica_cpus,
            "num_gpus": num_gpus,
            "runtime_env": {"env_vars": numeric_environment(engine, replicas)},
        },
        request_router_config=serve.config.RequestRouterConfig(
            request_router_class="holdfast.ray.router.EngineRouter"
        ),
    )
    log = (server.log_format, server.log_level)
    app: serve.Application = deployment.bind(engine, log, server.hang_timeout, command)
    return app


def numeric_environment(engine: EngineConfig, replicas: ReplicasConfig) -> dict[str, str]:
    """Return the numeric settings that Ray would choose itself."""
    threads = engine.num_threads or max(1, math.ceil(replicas.replica_cpus))
    environment = dict.fromkeys(_THREADS, str(threads))
    environment["OMP_DYNAMIC"] = environment["MKL_DYNAMIC"] = "FALSE"
    for name in ("HOLDFAST_CACHE_DIR", "PYTHONPATH"):
        if name in os.environ:
            environment[name] = os.environ[name]
    return environment
