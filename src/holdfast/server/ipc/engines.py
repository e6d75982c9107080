"""What the frontend needs of its engine, wherever that runs.

Supervisor                  one engine process on this machine (`supervisor`)
holdfast.ray.ReplicaPool    replicas on a Ray cluster
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from holdfast.server.errors import ApiError
from holdfast.server.ipc.engine_connection import EngineConnection
from holdfast.server.ipc.messages import Ready
from holdfast.server.ipc.request_table import RequestTable


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
    """One engine, or several that answer as one."""

    num_restarts: int  # engine processes or replicas that were lost

    @property
    def restart(self) -> Restart | None:
        """The restart in progress, while no engine is ready."""

    @property
    def requests(self) -> RequestTable: ...

    @property
    def link(self) -> EngineConnection:
        """The connection to a ready engine; raises an `ApiError` of 503 while there is none. Of several,
        one that answers deterministic requests."""

    @property
    def ready(self) -> Ready:
        """What the engine said when it was ready; of several, their sum. Raises an `ApiError` of 503 if
        requests can neither be computed nor wait."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_stuck(self) -> bool:
        """Whether no engine has finished a step for far too long."""

    @property
    def retry_after(self) -> int:
        """Estimated seconds until an engine is ready."""

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The replicas of a pool; empty for one engine process."""

    def set_tracing(self, on: bool) -> None:
        """Have steps traced, also by engines that are ready later."""

    async def refresh_status(self) -> None:
        """Request every engine's numbers; the callback gets them. Raises `EngineStopped` or an
        `ApiError` if there is none."""

    async def run(self) -> None:
        """Run until stopped. Raises `ConfigError` or `EngineStopped` if no engine can be had."""

    async def stop(self) -> None:
        """End what this server started. Running requests are dropped."""

    def kill(self) -> None:
        """As `stop`, without waiting for anything."""


def not_ready(retry_after: int) -> ApiError:
    """No engine is ready."""
    return ApiError(
        503,
        "the engine is not ready yet; ask again",
        code="engine_not_ready",
        headers={"Retry-After": str(retry_after)},
    )
