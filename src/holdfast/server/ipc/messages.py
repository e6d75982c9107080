"""The messages between the frontend and the engine process: typed, checked on arrival, never code.

    to the engine     Start, Submit, Abort, SetTracing, GetStatus, Stop
    from the engine   Progress, Ready, StartupFailed, FingerprintReady,
                      Accepted, Refused, StepOutput, StatusReport, StepTraced,
                      EngineDied, ReplicaStopping (a replica's)

The frontend gives each request its id, and the engine uses the same. After `Accepted` the request's
outputs follow, the last with its result, inside `StepOutput`s; after `Refused` nothing follows.
Messages are msgpack, tagged with their type, in the frames of `core.framing`. A message that does
not fit its type is a bug.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.framing import pack_frame
from holdfast.core.request import Request
from holdfast.core.results import RequestOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.status import CertificateState, EngineStatus
from holdfast.engine.tracer import StepTrace
from holdfast.scheduler.extension import ModelExtension
from holdfast.thinking.log import ThoughtLogs


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


# To the engine


class Start(Message, frozen=True):
    """The first message: the engine to build, and how to log.

    pass_record is the descriptor of a `PassRecord`, if there is one. model is the name that log records have, if
    the server has several models.
    """

    config: EngineConfig
    log_format: str
    log_level: str
    pass_record: int = -1
    model: str | None = None


class Submit(Message, frozen=True):
    """A request."""

    request: Request


class Abort(Message, frozen=True):
    """End this request. The frontend ignores what still comes for it."""

    request_id: int


class SetTracing(Message, frozen=True):
    """Send a trace of every step, or stop doing so."""

    on: bool


class GetStatus(Message, frozen=True):
    """Request the engine's counters."""


class Stop(Message, frozen=True):
    """End the process. Running requests are dropped."""


# From the engine


class Progress(Message, frozen=True):
    """The progress of one stage of starting."""

    stage: str
    done: int
    total: int


class Ready(Message, frozen=True):
    """The engine accepts requests. It is sent again when the certificate changes: a part of it is done, or
    a spot check found it wrong. certificate is None if determinism is off, or until it is made."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_kv_positions: int
    refusal: str | None  # why deterministic requests are refused
    certificate: dict[str, Any] | None
    receipt_key: str | None = None  # the public key of the key that signs receipts, in PEM
    extension: ModelExtension | None = None
    certificate_state: CertificateState = CertificateState("none")
    revocation: str | None = None  # why the certificate was revoked: deterministic answers are verified

    @property
    def max_len(self) -> int:
        """The largest number of tokens of a prompt with its answer."""
        return min(self.max_model_len, self.num_kv_positions)


class StartupFailed(Message, frozen=True):
    """The engine cannot be started with this configuration; a retry would not help."""

    reason: str


class FingerprintReady(Message, frozen=True):
    """The engine's fingerprint, sent once its weights are hashed. llguidance is the version of the
    grammar library, which decides bits of structured answers."""

    digest: str
    parts: dict[str, Any]
    llguidance: str | None = None

    def deciding(self, *, is_structured: bool) -> str:
        """Return what must be equal in an engine that goes on with an answer."""
        return f"{self.digest}, llguidance {self.llguidance}" if is_structured else self.digest


class Accepted(Message, frozen=True):
    """The engine has queued this request."""

    request_id: int


class Refused(Message, frozen=True):
    """A request that cannot be served. code is that of a class in `holdfast.errors`."""

    request_id: int
    code: str
    message: str


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A request left the queue."""

    request_id: int
    queue_seconds: float


class StepOutput(Message, frozen=True):
    """What one step gave all requests.

    A result comes without its prompt, the logprobs of that and its choices: the frontend has them already.
    """

    started: tuple[Started, ...]
    outputs: tuple[RequestOutput, ...]


class StatusReport(Message, frozen=True):
    status: EngineStatus


class StepTraced(Message, frozen=True):
    trace: StepTrace


class EngineDied(Message, frozen=True):
    """A replica's engine process died, with these requests in its last pass. The last message of a
    connection."""

    how: str
    running: tuple[int, ...]


class ReplicaStopping(Message, frozen=True):
    """A replica ends because it was told to. The last message of a connection."""


ToEngine = Start | Submit | Abort | SetTracing | GetStatus | Stop
FromEngine = (
    Progress
    | Ready
    | StartupFailed
    | FingerprintReady
    | Accepted
    | Refused
    | StepOutput
    | StatusReport
    | StepTraced
    | EngineDied
    | ReplicaStopping
)


def _enc_hook(value: Any) -> Any:
    """Return an array as bytes: its type code and its data."""
    if isinstance(value, array):
        return value.typecode.encode() + value.tobytes()
    raise NotImplementedError(f"{type(value).__name__} is no part of a message")


def dec_hook(kind: type, value: Any) -> Any:
    """Return the inverse of `_enc_hook`."""
    if kind is array and isinstance(value, bytes) and value[:1] in (b"i", b"f"):
        return array(chr(value[0]), value[1:])
    if kind is ModelExtension:
        return msgspec.convert(value, ThoughtLogs)
    raise ValueError(f"this is no {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_enc_hook)

decode_to_engine = msgspec.msgpack.Decoder[ToEngine](ToEngine, dec_hook=dec_hook).decode
decode_from_engine = msgspec.msgpack.Decoder[FromEngine](FromEngine, dec_hook=dec_hook).decode


def encode(messages: Sequence[Any]) -> bytes:
    return b"".join([pack_frame(_encoder.encode(message)) for message in messages])
