"""Start or join a Ray cluster, and say clearly why that does not work."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.ray.config import ReplicasConfig

_log = logging.getLogger("holdfast.server")
NAMESPACE = "serve"
_CONNECT_SECONDS = 5.0
_OBJECT_STORE_BYTES = 100 << 20  # nothing large travels through it


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Join the cluster at this address, or start one on this machine, which ends with the context.

    Raises `ConfigError`.
    """
    own: dict[str, Any] = {}
    if address is None:
        own = {"object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
    elif address != "auto":
        _require_listener(address)
    token = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):
        token.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        ray.init(
            address=address or "local", namespace=NAMESPACE, log_to_driver=False, logging_level="error",
            configure_logging=False, **own,
        )  # fmt: skip
    except Exception as error:
        raise ConfigError(_explain(address, error)) from None
    if address is None:
        with suppress(OSError):
            token.chmod(0o600)  # Ray writes it for everyone to read
        _log.warning(
            "Ray listens on all interfaces of this machine, and everyone can read its metrics; see docs/scaling.md"
        )
    try:
        yield
    finally:
        ray.shutdown()


class HeadWatch:
    """Says in the log that Ray's head is gone: Ray ends every process of the cluster that misses it for long."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_gone = False

    def check(self) -> None:
        was_gone, self._is_gone = self._is_gone, not _answers(self._address)
        if self._is_gone and not was_gone:
            _log.error(
                "Ray's head at %s does not answer; Ray ends this server about 60 seconds after it lost it, unless it "
                "comes back",
                self._address,
            )
        elif was_gone and not self._is_gone:
            _log.warning("Ray's head at %s answers again", self._address)


def _answers(address: str) -> bool:
    try:
        _connect(address)
    except OSError:
        return False
    return True


def _connect(address: str) -> None:
    """Open a connection and close it. Raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _require_listener(address: str) -> None:
    """Raise `ConfigError` if nothing listens at this address. Ray itself would try for minutes."""
    if "://" in address:
        raise ConfigError(
            f"the Ray address {address} must be HOST:PORT of the head node, such as 10.0.0.1:6379; this machine must be "
            "a node of the cluster (ray start --address=HOST:PORT)"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"the Ray address must be HOST:PORT, such as 10.0.0.1:6379, or auto, not {address!r}"
        )
    try:
        _connect(address)
    except OSError as error:
        raise ConfigError(_explain(address, error)) from None


def _explain(address: str | None, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return (
            f"the Ray cluster at {address} runs other versions: {text}. "
            "Install the same versions of Ray and Python on every node"
        )
    if "uthentication" in text:
        return (
            f"the Ray cluster at {address} refused this machine's authentication token: {text[:300]}. "
            "Copy the cluster's token to ~/.ray/auth_token or set RAY_AUTH_TOKEN"
        )
    if address is None:
        return f"no Ray cluster can be started on this machine: {text[:300]}"
    return (
        f"there is no Ray cluster at {address}: {text[:300]}. "
        "Give the address that `ray start --head` printed, or leave --ray-address out to start one here"
    )


def gpus_per_replica(engine: EngineConfig, replicas: ReplicasConfig) -> float:
    """Return what Ray reserves for one replica."""
    if replicas.replica_gpus is not None:
        return replicas.replica_gpus
    if engine.device == "auto":
        return 1.0 if _num_gpus() >= 1 else 0.0
    return 1.0 if engine.device.startswith("cuda") else 0.0


def _num_gpus() -> float:
    """Count the GPUs of the cluster, or before it is joined of this machine: `serve run` builds applications there."""
    if ray.is_initialized():
        return float(ray.cluster_resources().get("GPU", 0))
    if find_spec("torch") is None:
        return 0.0
    import torch

    return torch.cuda.device_count()


def require_resources(engine: EngineConfig, replicas: ReplicasConfig) -> None:
    """Raise `ConfigError` if no node can run one replica, or the cluster cannot run all of them."""
    num_gpus = gpus_per_replica(engine, replicas)
    if engine.device.startswith("cuda") and num_gpus == 0:
        raise ConfigError(
            "the device is a GPU, but replica_gpus is 0; give a replica at least a part of a GPU"
        )
    needed = {"CPU": replicas.replica_cpus, "GPU": num_gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = sum(_num_fitting(node, needed) for node in nodes)
    wanted = replicas.replicas or 1
    if fitting >= wanted:
        return
    total = show_resources(ray.cluster_resources())
    what = show_resources(needed)
    if not fitting:
        hint = (
            "join nodes with GPUs, or choose --device cpu"
            if num_gpus and not any(node.get("GPU", 0) for node in nodes)
            else "join larger nodes, or reserve less with --replica-cpus and --replica-gpus"
        )
        raise ConfigError(
            f"no node of the Ray cluster can run a replica: it needs {what}; the {len(nodes)} nodes have {total} "
            f"in all. Please {hint}"
        )
    raise ConfigError(
        f"the Ray cluster has room for {fitting} replicas, not {wanted}: each needs {what}; the {len(nodes)} nodes "
        f"have {total} in all. Join more nodes, ask for fewer --replicas, or reserve less with --replica-cpus"
    )


def _num_fitting(node: Mapping[str, float], needed: Mapping[str, float]) -> int:
    return min(
        (int(node.get(name, 0) / amount + 1e-9) for name, amount in needed.items() if amount), default=1 << 20
    )


def show_resources(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))
