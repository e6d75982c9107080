"""What the two processes of a server say to each other: typed, checked when it arrives, and never code.

    to the engine     Start, Submit, SubmitScore, Abort, SetTracing, AskStatus, Stop
    from the engine   Progress, Ready, StartupFailed; FingerprintReady; Accepted, Refused, StepOutput; Status, Revoked, Traced

Each request has a number the frontend gave it. After `Accepted` come deltas and one `RequestResult`, inside `StepOutput`s;
after `Refused` nothing. Messages are msgpack, tagged with their type; one that does not fit its type is a bug of ours.
"""

from typing import Any

import msgspec

from holdfast.core.results import Determinism, Stats, Thought
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.stop_rules import FinishReason
from holdfast.engine.config import EngineConfig
from holdfast.engine.tracer import StepTrace
from holdfast.server.ipc.engine_status import EngineStatus


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Anything said."""


# To the engine


class Start(Message, frozen=True):
    """The first message: what to load, and how to log."""

    config: EngineConfig
    log_format: str
    log_level: str


class Submit(Message, frozen=True):
    """Answer this prompt. settings are those of `SamplingParams`, as a receipt writes them."""

    number: int
    prompt_ids: tuple[int, ...]
    settings: dict[str, Any]
    echo_text: str | None = None
    with_receipt: bool = False


class SubmitScore(Message, frozen=True):
    """The logprobs of a completion behind a prompt."""

    number: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    settings: dict[str, Any]
    with_receipt: bool = False


class Abort(Message, frozen=True):
    """Nobody waits for this request any more."""

    number: int


class SetTracing(Message, frozen=True):
    """Tell of every step, or stop telling."""

    on: bool


class AskStatus(Message, frozen=True):
    """How are you?"""


class Stop(Message, frozen=True):
    """End. What still runs is given up."""


# From the engine


class Progress(Message, frozen=True):
    """How far the engine is with starting."""

    what: str
    done: int
    total: int


class Ready(Message, frozen=True):
    """The engine can answer. certificate is None where determinism is off."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_kv_positions: int
    determinism: str
    refusal: str | None  # why deterministic requests are refused
    certificate: dict[str, Any] | None
    chunk: int = 0  # tokens a thought is about; 0: the model does not think


class StartupFailed(Message, frozen=True):
    """The engine cannot be started with this configuration; trying again would not help."""

    reason: str


class FingerprintReady(Message, frozen=True):
    """The engine's fingerprint, once its weights are hashed."""

    digest: str
    parts: dict[str, Any]


class Accepted(Message, frozen=True):
    number: int
    seed: int


class Refused(Message, frozen=True):
    """kind is the name of an error in `holdfast.errors`."""

    number: int
    kind: str
    reason: str


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What came since the last piece of one choice of one request. Thoughts come before the tokens they led to."""

    number: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    thoughts: tuple[Thought, ...] = ()


class RequestResult(msgspec.Struct, frozen=True, array_like=True):
    """How a request ended. Its choices were told in pieces."""

    number: int
    seed: int
    determinism: Determinism
    stats: Stats
    error: str | None
    receipt: dict[str, Any] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """A request left the queue."""

    number: int
    queue_seconds: float


class StepOutput(Message, frozen=True):
    """What one step gave, of all requests, in order: begun, then pieces, then outcomes."""

    begun: tuple[Begun, ...]
    pieces: tuple[Piece, ...]
    outcomes: tuple[RequestResult, ...]


class Status(Message, frozen=True):
    status: EngineStatus


class Revoked(Message, frozen=True):
    """A spot check found the certificate wrong; deterministic answers are verified from now on."""

    reason: str


class Traced(Message, frozen=True):
    """A step, as a watcher sees it."""

    step: StepTrace


ToEngine = Start | Submit | SubmitScore | Abort | SetTracing | AskStatus | Stop
FromEngine = (
    Progress
    | Ready
    | StartupFailed
    | FingerprintReady
    | Accepted
    | Refused
    | StepOutput
    | Status
    | Revoked
    | Traced
)
