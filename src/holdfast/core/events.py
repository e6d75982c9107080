"""What the scheduler tells the engine after a step. Only committed tokens are ever in an event."""

from dataclasses import dataclass

from holdfast.core.fast_dataclass import fast_dataclass
from holdfast.core.results import Determinism, Stats
from holdfast.core.step_plan import Sampled, ThoughtIds, TokenLogprob
from holdfast.core.stop_rules import FinishReason


@fast_dataclass
class TokensCommitted:
    request_id: int
    samples: tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Logprobs of the next of the prompt's own tokens."""

    request_id: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class ThoughtsCommitted:
    """What was thought behind the next chunks, as (chunk, thought)."""

    request_id: int
    thoughts: tuple[tuple[int, ThoughtIds], ...]


@dataclass(frozen=True, slots=True)
class CertificateChecked:
    """Rows of certified passes were computed again at the reference's shape. If the bits differ, the certificate is void.

    No rows: it came to light otherwise, when an answer was computed again.
    """

    num_tokens: int
    mismatch: str | None


@dataclass(frozen=True, slots=True)
class RequestEnded:
    request_id: int
    reason: FinishReason
    determinism: Determinism
    stats: Stats
    error: str | None = None
    error_code: str | None = None  # of a class in `holdfast.errors`


Event = TokensCommitted | PromptScored | ThoughtsCommitted | CertificateChecked | RequestEnded
