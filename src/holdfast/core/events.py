"""What the scheduler tells the engine after a step. Only committed tokens are ever in an event."""

from dataclasses import dataclass

from holdfast.core.plan import Sampled
from holdfast.core.result import Determinism, Stats
from holdfast.core.stop import FinishReason


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    request_id: int
    samples: tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class RequestEnded:
    request_id: int
    reason: FinishReason
    determinism: Determinism
    stats: Stats
    error: str | None = None


Event = TokensCommitted | RequestEnded
