"""The JSON objects of responses: what the routes return and the OpenAPI document describes.

A field with the default None is left out if it is None. The fuzz test compares every response of a running
server with these objects.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from holdfast.core.results import Determinism, Stats
from holdfast.engine.status import CertificateState
from holdfast.receipts.check import SealState, SignatureState
from holdfast.receipts.compare import Difference

Fingerprint = Annotated[
    str, Meta(description="A digest of everything that decides bits. Same fingerprint, same bits.")
]
CachedTokens = Annotated[int, Meta(description="Prompt tokens found in the prefix cache.")]
Mode = Annotated[Determinism, Meta(description="certified and verified are guaranteed, none is not.")]
ErrorMessage = Annotated[str, Meta(description="What was wrong, what was expected, what to do.")]
ErrorType = Annotated[str, Meta(description="The kind of error, which follows from the status.")]
ErrorCode = Annotated[str | None, Meta(description="A stable name of the error, for programs.")]


class JsonObject(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A JSON object of a response, with exactly these fields."""


class ErrorInfo(JsonObject):
    message: ErrorMessage
    type: ErrorType
    param: Annotated[str | None, Meta(description="The invalid field.")]
    code: ErrorCode


class ErrorResponse(JsonObject):
    """The body of every error response."""

    error: ErrorInfo


class AnthropicErrorDetails(JsonObject):
    error_code: str


class AnthropicError(JsonObject):
    type: ErrorType
    message: ErrorMessage
    details: AnthropicErrorDetails | None = None


class AnthropicErrorResponse(JsonObject, tag_field="type", tag="error"):
    """The body of every error response of Anthropic's routes."""

    error: AnthropicError
    request_id: str | None


class PromptTokensDetails(JsonObject):
    cached_tokens: CachedTokens


class CompletionTokensDetails(JsonObject):
    reasoning_tokens: Annotated[int, Meta(description="Tokens of the thinking, with its tags.")]


class TokenCounts(JsonObject):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Usage(TokenCounts):
    """completion_tokens_details: of chat with a model whose thinking is separated."""

    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


class RequestDetails(JsonObject):
    mode: Mode
    seed: int
    stats: Stats
    receipt: Annotated[
        dict[str, Any] | None, Meta(description="With `return_receipt`; see docs/receipt.schema.json.")
    ] = None


class ThoughtInfo(JsonObject):
    """A thought of a thinking model, after a chunk of tokens. A trivial thought has no tokens."""

    index: Annotated[int, Meta(description="Index of the choice.")]
    chunk: int
    position: Annotated[
        int, Meta(description="Position of the chunk's last token, counted from the prompt's start.")
    ]
    text: str
    token_ids: Sequence[int]


class HoldfastDetails(RequestDetails):
    """How the choices were generated.

    With several prompts: of all together, and of each one in `requests`.
    """

    requests: list[RequestDetails] | None = None
    thoughts: Annotated[list[ThoughtInfo] | None, Meta(description="Thinking models only.")] = None


class CompletionBase(JsonObject):
    """Fields that all completions share."""

    id: str
    created: int
    model: str
    system_fingerprint: Fingerprint
    usage: Usage
    holdfast: HoldfastDetails


class CompletionLogprobs(JsonObject):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(JsonObject):
    logprob: float
    rank: Annotated[int | None, Meta(description="Null if the token is not among the most likely ones.")]
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id


class StopFields(JsonObject):
    stop_reason: Annotated[
        str | int | None,
        Meta(description="The stop string or stop token that ended the choice, if one did."),
    ]
    matched_stop: Annotated[
        str | int | None, Meta(description="The same, or the end-of-text token that ended the choice.")
    ]


class CompletionChoice(StopFields):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None


class Completion(CompletionBase, tag_field="object", tag="text_completion"):
    choices: list[CompletionChoice]


class TopLogprob(JsonObject):
    token: str
    logprob: float
    bytes: list[int]


class ChatCompletionTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatCompletionLogprobs(JsonObject):
    content: list[ChatCompletionTokenLogprob]
    refusal: None


class FunctionCall(JsonObject):
    name: str
    arguments: Annotated[str, Meta(description="JSON text, truncated if the choice was.")]


class MessageToolCall(JsonObject, tag_field="type", tag="function"):
    id: str
    function: FunctionCall


class ChatCompletionMessage(JsonObject, tag_field="role", tag="assistant"):
    """reasoning_content is the same as reasoning, which vLLM named so before."""

    content: str | None
    refusal: None
    reasoning: Annotated[str | None, Meta(description="The thinking before the answer, if there is any.")] = (
        None
    )
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class ChatCompletionChoice(StopFields):
    index: int
    message: ChatCompletionMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: Sequence[int] | None = None


class ChatCompletion(CompletionBase, tag_field="object", tag="chat.completion"):
    choices: list[ChatCompletionChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: Sequence[int] | None = None


class TokenizeResponse(JsonObject):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(JsonObject):
    prompt: str


class TokenizerInfo(JsonObject):
    """The tokenizer in the words of transformers' tokenizer_config.json."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    additional_special_tokens: Annotated[list[str], Meta(description="Special tokens without a name.")]
    added_tokens_decoder: Annotated[dict[str, str], Meta(description="The special tokens by id.")]
    add_bos_token: Annotated[
        bool, Meta(description="Whether `add_special_tokens` puts bos_token before a text.")
    ]
    add_eos_token: Annotated[
        bool, Meta(description="Whether `add_special_tokens` puts eos_token after a text.")
    ]
    clean_up_tokenization_spaces: bool
    model_max_length: Annotated[int | None, Meta(description="The context this server serves.")]
    chat_template: str | None


class EmbeddingData(JsonObject, tag_field="object", tag="embedding"):
    index: int
    embedding: Annotated[list[float] | str, Meta(description="Base64 if the request asked for it.")]


class EmbeddingUsage(JsonObject):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class EmbeddingRequestDetails(JsonObject):
    mode: Mode
    stats: Stats


class EmbeddingDetails(EmbeddingRequestDetails):
    """With several inputs: of all together, and of each one in `requests`."""

    requests: list[EmbeddingRequestDetails] | None = None


class EmbeddingResponse(JsonObject, tag_field="object", tag="list"):
    id: str
    created: int
    model: str
    system_fingerprint: Fingerprint
    data: list[EmbeddingData]
    usage: EmbeddingUsage
    holdfast: EmbeddingDetails


class ScoreResponse(JsonObject, tag_field="object", tag="holdfast.score"):
    model: str
    system_fingerprint: Fingerprint
    token_ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    sum: float
    usage: Usage
    holdfast: HoldfastDetails


class ReplayResponse(JsonObject, tag_field="object", tag="holdfast.replay"):
    same: bool
    compared: Annotated[bool, Meta(description="False if the fingerprints differ and `force` was not set.")]
    promised: Annotated[bool, Meta(description="Whether the receipt is of a deterministic request.")]
    seal: SealState
    signature: Annotated[
        SignatureState, Meta(description="A signature is checked if it names this server's own key.")
    ]
    fingerprint_differences: list[str]
    difference: Difference | None
    mode: Determinism | None
    num_tokens: int | None = None
    num_logprobs: int | None = None
    usage: Usage | None = None


class ReplicaInfo(JsonObject):
    id: str
    node: str
    state: Literal["connecting", "ready", "draining"]
    fingerprint: str
    deterministic: Annotated[bool, Meta(description="Whether deterministic requests go there.")]
    requests: Annotated[int, Meta(description="Requests of this frontend that run there.")]
    version: str


class HealthResponse(JsonObject):
    status: Literal["ok", "degraded", "draining", "starting", "restarting", "stuck", "failed"]
    certificate: Annotated[
        CertificateState | None, Meta(description="Where the certificate stands, if ok.")
    ] = None
    stage: Annotated[str | None, Meta(description="What a start is doing, such as Certifying.")] = None
    done: Annotated[int | None, Meta(description="How much of the stage is done.")] = None
    total: Annotated[int | None, Meta(description="The whole of the stage, in the same unit.")] = None
    seconds_left: Annotated[float | None, Meta(description="An estimate for the stage.")] = None
    reason: Annotated[str | None, Meta(description="Why the engine process is restarted.")] = None
    seconds: Annotated[float | None, Meta(description="How long the restart has taken so far.")] = None
    restarts: Annotated[int | None, Meta(description="Engine processes that died so far, if any.")] = None
    replicas: Annotated[list[ReplicaInfo] | None, Meta(description="The engine replicas of a pool.")] = None
    waiting_requests: Annotated[
        int | None,
        Meta(description="Requests that continue once the engine process has them again, if any."),
    ] = None
    models: Annotated[
        dict[str, "HealthResponse"] | None,
        Meta(description="The state of each model, if there are several. degraded: some of them answer."),
    ] = None


class VersionResponse(JsonObject):
    version: str


class LoadResponse(JsonObject):
    server_load: Annotated[int, Meta(description="Requests that run or wait.")]


class ModelInfo(JsonObject, tag_field="object", tag="model"):
    id: str
    created: int
    owned_by: str
    root: str
    max_model_len: int | None
    about: str | None  # what to expect of a built-in demo model


class ModelList(JsonObject, tag_field="object", tag="list"):
    data: list[ModelInfo]


class FingerprintInfo(JsonObject):
    digest: str
    parts: dict[str, Any]


class ReceiptKeyResponse(JsonObject, tag_field="object", tag="holdfast.receipt_key"):
    algorithm: Literal["ed25519"]
    key_id: Annotated[str, Meta(description="SHA-256 of the 32 bytes of the public key.")]
    public_key: Annotated[str, Meta(description="The public key in PEM.")]


class CertificateResponse(JsonObject, tag_field="object", tag="holdfast.certificate"):
    determinism: str
    refusal: Annotated[str | None, Meta(description="Why deterministic requests are refused, if they are.")]
    fingerprint: FingerprintInfo
    state: CertificateState
    certificate: dict[str, Any] | None
    revocation: str | None
