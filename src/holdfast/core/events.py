"""What the scheduler reports to the engine after a step. Events contain only committed tokens."""

from dataclasses import dataclass

from holdfast.core.results import Determinism, Stats
from holdfast.core.step_plan import Sampled, TokenLogprob, fast_dataclass
from holdfast.core.stop_rules import FinishReason


@fast_dataclass
class TokensCommitted:
    request_id: int
    samples: tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class TokensConfirmed:
    """Tokens that another engine sent came out again, bit for bit."""

    request_id: int
    samples: tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Logprobs of the next tokens of the prompt."""

    request_id: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class PromptPooled:
    """The embedding of the prompt, fp32 in little-endian order."""

    request_id: int
    embedding: bytes


@dataclass(frozen=True, slots=True)
class ExtraCommitted:
    """What is new of the request's extension: see `RequestExtension.commit`."""

    request_id: int
    items: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CertificateChecked:
    """Tokens of certified passes were computed again at the reference's batch size. A mismatch
    revokes the certificate.

    num_tokens is 0 if no spot check found the mismatch, but an answer that was computed again.
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


AnswerEvent = TokensCommitted | TokensConfirmed | PromptScored | PromptPooled | ExtraCommitted | RequestEnded
Event = AnswerEvent | CertificateChecked
