"""Settings of engine replicas on a Ray cluster."""

from dataclasses import dataclass
from functools import partial

from holdfast.core.options import option
from holdfast.errors import ConfigError

_replicas = partial(option, panel="Replicas")
_AMOUNTS = ("replica_cpus", "replica_gpus", "upscale_delay", "downscale_delay", "replica_drain_timeout")


@dataclass(frozen=True)
class ReplicasConfig:
    """How many replicas, where, and what each gets of its machine."""

    replicas: int | None = _replicas(
        None,
        "Number of engine replicas on a Ray cluster; with --max-replicas, the least. Needs the extra ray.",
        unset="one engine process, without Ray",
    )
    max_replicas: int | None = _replicas(
        None,
        "Add replicas up to this number while requests wait, and remove them when they are idle.",
        unset="a fixed number",
    )
    ray_address: str | None = _replicas(
        None,
        "Address of the Ray cluster to join, such as 10.0.0.1:6379, or auto for the one on this machine.",
        metavar="ADDRESS",
        unset="start a cluster on this machine",
    )
    replica_cpus: float = _replicas(
        1.0, "CPUs that Ray reserves for a replica; its threads, unless --num-threads."
    )
    replica_gpus: float | None = _replicas(
        None,
        "GPUs that Ray reserves for a replica.",
        unset="1 if the device is a GPU, or if it is auto and the cluster has GPUs; else 0",
    )
    target_ongoing_requests: float | None = _replicas(
        None,
        "Requests of a replica above which another one is added.",
        unset="0.8 of --max-num-seqs",
    )
    upscale_delay: float = _replicas(10.0, "Seconds of load before a replica is added.")
    downscale_delay: float = _replicas(300.0, "Seconds without load before a replica is removed.")
    replica_drain_timeout: float = _replicas(
        60.0, "Seconds that requests which cannot move may continue at a replica that is removed or replaced."
    )
    application_fingerprint: str | None = _replicas(
        None,
        "The fingerprint that deterministic answers must have. Replicas with another one serve ordinary requests only.",
        metavar="FINGERPRINT",
        unset="that of the first replica",
    )

    def __post_init__(self) -> None:
        for name in ("replicas", "max_replicas"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.max_replicas is not None and self.max_replicas < (self.replicas or 1):
            raise ConfigError(
                f"max_replicas must be at least replicas, {self.replicas or 1}, not {self.max_replicas}"
            )
        for name in _AMOUNTS:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 <= value < 1e6):
                raise ConfigError(f"{name} must be a number of at least 0, not {value!r}")
        if self.target_ongoing_requests is not None and not self.target_ongoing_requests > 0:
            raise ConfigError(
                f"target_ongoing_requests must be more than 0, not {self.target_ongoing_requests}"
            )
        if self.replicas is None and self.max_replicas is None:
            for name in ("ray_address", "application_fingerprint"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} needs replicas: say how many with --replicas")

    @property
    def is_pool(self) -> bool:
        return self.replicas is not None or self.max_replicas is not None
