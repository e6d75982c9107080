"""What the frontend needs of its engine, wherever that runs.

EngineProcess               one engine process on this machine (`engine_process`)
holdfast.ray.ReplicaPool    replicas on a Ray cluster
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from holdfast.errors import NotReady
from holdfast.server.ipc.requests import RequestTable


@dataclass(frozen=True)
class Restart:
    """A restart in progress: why, and when it began."""

    reason: str
    began: float


@dataclass(frozen=True)
class ReplicaStatus:
    """One engine replica.

    is_deterministic: it has the application's fingerprint, so deterministic requests may go to it.
    num_requests: those of this frontend that run there. num_accepted: those that it ever accepted.
    """

    id: str
    node: str
    state: Literal["connecting", "ready", "draining"]
    fingerprint: str
    is_deterministic: bool
    num_requests: int
    num_accepted_deterministic: int
    num_accepted_ordinary: int
    version: str


class Engines(Protocol):
    """One engine, or several that answer as one.

    num_restarts: engine processes or replicas that were lost. restart: the one in progress, while no
    engine is ready. replicas: those of a pool. is_stuck: no engine has finished a step for far too long.
    retry_after: the estimated seconds until an engine is ready.
    """

    num_restarts: int

    @property
    def requests(self) -> RequestTable: ...

    @property
    def restart(self) -> Restart | None: ...

    @property
    def replicas(self) -> Sequence[ReplicaStatus]: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_stuck(self) -> bool: ...

    @property
    def retry_after(self) -> int: ...

    def set_tracing(self, on: bool) -> None:
        """Have steps traced, also by engines that are ready later."""

    async def refresh_status(self) -> None:
        """Request every engine's numbers; the callback gets them. Raises `EngineStopped` or
        `NotReady` if there is none."""

    async def run(self) -> None:
        """Run until stopped. Raises `ConfigError` or `EngineStopped` if no engine can be had."""

    async def stop(self) -> None:
        """End what this server started. Running requests are dropped."""

    def kill(self) -> None:
        """Do as `stop`, without waiting for anything."""


def not_ready(retry_after: int) -> NotReady:
    """Return the error for requests while no engine is ready."""
    return NotReady("the engine is not ready yet; ask again", retry_after=retry_after)
