"""`holdfast serve --replicas`: our HTTP server in front of engine replicas on a Ray cluster."""

import contextlib
import itertools
import logging
import math
import re
import threading
import time
from collections.abc import Sequence

import ray
from ray import serve
from ray.serve.api import RunTarget

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.ray.cluster import HeadWatch, cluster, require_resources, show_resources
from holdfast.ray.config import ReplicasConfig
from holdfast.ray.deployment import ENGINE, engine_app
from holdfast.ray.pool import ReplicaPool
from holdfast.server.config import ModelConfig, ServerConfig
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.main import run

_log = logging.getLogger("holdfast.server")
APPLICATION = "holdfast"
_WATCH_SECONDS = 1.0
_PATIENCE_SECONDS = 20.0  # before the log says that replicas wait for resources


def serve_replicas(
    server: ServerConfig, engine: EngineConfig, replicas: ReplicasConfig, command: Sequence[str] | None = None
) -> int:
    """Serve until a signal ends it. Returns the exit code; raises `ConfigError` if it cannot start.

    The replicas end with the server. command starts the engine process of a replica.
    """
    with cluster(replicas.ray_address):
        require_resources(engine, replicas)
        app = engine_app(engine, replicas, server, command)
        name = _free_name()

        def connect(server: ServerConfig, engine: EngineConfig, callbacks: EngineCallbacks) -> ReplicaPool:
            fingerprint = replicas.application_fingerprint
            pool = ReplicaPool(name, server, engine, callbacks, fingerprint=fingerprint)
            DeploymentWatcher(name, pool).start()
            return pool

        serve.start(proxy_location="Disabled")
        serve.run_many(
            [RunTarget(app, name=name, route_prefix=None)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        try:
            return run(server, [ModelConfig(engine, server.served_model_names)], connect=connect)
        finally:
            with contextlib.suppress(Exception):
                serve.delete(name, _blocking=False)


def _free_name() -> str:
    """Choose the application's name. Several servers can share a cluster."""
    taken: set[str] = set()
    with contextlib.suppress(Exception):
        taken = set(serve.status().applications)
    names = (f"{APPLICATION}-{number}" if number > 1 else APPLICATION for number in itertools.count(1))
    return next(name for name in names if name not in taken)


class DeploymentWatcher(threading.Thread):
    """Tells a pool why its replicas do not start, and the log that Ray's head is gone. Ray's status is asked in a
    thread, because that blocks."""

    def __init__(self, name: str, pool: ReplicaPool) -> None:
        super().__init__(name="holdfast-deployment", daemon=True)
        self._app = name
        self._pool = pool
        self._say_at = time.monotonic() + _PATIENCE_SECONDS
        self._head = HeadWatch(ray.get_runtime_context().gcs_address)

    def run(self) -> None:
        while not self._pool.is_stopped:
            time.sleep(_WATCH_SECONDS)
            self._head.check()
            try:
                self._check()
            except Exception as error:  # Ray's controller may be restarted
                _log.debug("the status of the replicas is not known: %s", error)

    def _check(self) -> None:
        if self._pool.is_stopped or not ray.is_initialized():  # asking would start another cluster
            return
        application = serve.status().applications.get(self._app)
        if application is None:
            return
        if application.status == "DEPLOY_FAILED":
            engine = application.deployments.get(ENGINE)
            reason = (engine.message if engine is not None else "") or application.message
            self._pool.fail(ConfigError(explain_failure(reason)))
        elif not self._pool.is_ready and time.monotonic() > self._say_at:
            self._say_at = math.inf
            free = show_resources(ray.available_resources())
            _log.warning("no replica is ready yet; %s of the Ray cluster are free", free)


def explain_failure(message: str) -> str:
    """Find the cause in Ray's account of a deployment that failed, which ends in a traceback."""
    missing = re.search(r"No module named '([\w.]+)'", message)
    if missing is not None:
        return (
            f"a replica could not be started: {missing[1]} is not installed on its node. Install the same version of "
            "holdfast[ray,server] on every node"
        )
    raised = re.findall(
        r"^(?:[\w.]+\.)?(\w*(?:Error|NotFound|Stopped|Exception|Model|Weights)): (.+)$", message, re.M
    )
    if raised:
        return f"no replica could be started: {raised[-1][1].strip()}"
    return f"no replica could be started: {' '.join(message.split())[-500:]}"
