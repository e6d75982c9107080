"""Response models, for the OpenAPI document.

Responses are not built from these models, which would cost a validation each. The fuzz test
compares every response of a running server with them.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.core.results import Stats
from holdfast.server.api.schema.requests import Mode


class ResponseModel(BaseModel):
    """A JSON object of a response, with exactly these fields."""

    model_config = ConfigDict(extra="forbid")


class ErrorInfo(ResponseModel):
    message: str = Field(description="What was wrong, what was expected, what to do.")
    type: str = Field(description="The kind of error, which follows from the status.")
    param: str | None = Field(description="The invalid field.")
    code: str | None = Field(description="A stable name of the error, for programs.")


class ErrorResponse(ResponseModel):
    """The body of every error response."""

    error: ErrorInfo


class AnthropicErrorDetails(ResponseModel):
    error_code: str = Field(description="A stable name of the error, for programs.")


class AnthropicError(ResponseModel):
    type: str = Field(description="The kind of error, which follows from the status.")
    message: str = Field(description="What was wrong, what was expected, what to do.")
    details: AnthropicErrorDetails | None = None


class AnthropicErrorResponse(ResponseModel):
    """The body of every error response of Anthropic's routes."""

    type: Literal["error"]
    error: AnthropicError
    request_id: str | None


class PromptTokensDetails(ResponseModel):
    cached_tokens: int = Field(description="Prompt tokens found in the prefix cache.")


class CompletionTokensDetails(ResponseModel):
    reasoning_tokens: int = Field(description="Tokens of the thinking, with its tags.")


class Usage(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = Field(
        None, description="Chat with a model whose thinking is separated only."
    )


class RequestDetails(ResponseModel):
    mode: Mode = Field(description="certified and verified are guaranteed, none is not.")
    seed: int
    stats: Stats
    receipt: dict[str, Any] | None = Field(
        None, description="With `return_receipt`; see docs/receipt.schema.json."
    )


class ThoughtInfo(ResponseModel):
    """A thought of a thinking model, after a chunk of tokens. A trivial thought has no tokens."""

    index: int = Field(description="Index of the choice.")
    chunk: int
    position: int = Field(description="Position of the chunk's last token, counted from the prompt's start.")
    text: str
    token_ids: list[int]


class HoldfastDetails(RequestDetails):
    """How the choices were generated.

    With several prompts: of all together, and of each one in `requests`.
    """

    requests: list[RequestDetails] | None = None
    thoughts: list[ThoughtInfo] | None = Field(None, description="Thinking models only.")


class CompletionBase(ResponseModel):
    """Fields that all completions share."""

    id: str
    created: int
    model: str
    system_fingerprint: str = Field(
        description="A digest of everything that decides bits. Same fingerprint, same bits."
    )
    usage: Usage
    holdfast: HoldfastDetails


class CompletionLogprobs(ResponseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(ResponseModel):
    logprob: float
    rank: int | None = Field(description="Null if the token is not among the most likely ones.")
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id


class StopFields(ResponseModel):
    stop_reason: str | int | None = Field(
        description="The stop string or stop token that ended the choice, if one did."
    )
    matched_stop: str | int | None = Field(
        description="The same, or the end-of-text token that ended the choice."
    )


class CompletionChoice(StopFields):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(CompletionBase):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatCompletionTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatCompletionLogprobs(ResponseModel):
    content: list[ChatCompletionTokenLogprob]
    refusal: None


class FunctionCall(ResponseModel):
    name: str
    arguments: str = Field(description="JSON text, truncated if the choice was.")


class MessageToolCall(ResponseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatCompletionMessage(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | None = Field(None, description="The thinking before the answer, if there is any.")
    reasoning_content: str | None = Field(
        None, description="The same as reasoning, which vLLM named so before."
    )
    tool_calls: list[MessageToolCall] | None = None


class ChatCompletionChoice(StopFields):
    index: int
    message: ChatCompletionMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class ChatCompletion(CompletionBase):
    object: Literal["chat.completion"]
    choices: list[ChatCompletionChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class TokenizeResponse(ResponseModel):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(ResponseModel):
    prompt: str


class TokenizerInfo(ResponseModel):
    """The tokenizer in the words of transformers' tokenizer_config.json."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    additional_special_tokens: list[str] = Field(description="Special tokens without a name.")
    added_tokens_decoder: dict[str, str] = Field(description="The special tokens by id.")
    add_bos_token: bool = Field(description="Whether `add_special_tokens` puts bos_token before a text.")
    add_eos_token: bool = Field(description="Whether `add_special_tokens` puts eos_token after a text.")
    clean_up_tokenization_spaces: Literal[False]
    model_max_length: int | None = Field(description="The context this server serves.")
    chat_template: str | None


class EmbeddingData(ResponseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Base64 if the request asked for it.")


class EmbeddingUsage(ResponseModel):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class EmbeddingRequestDetails(ResponseModel):
    mode: Mode = Field(description="certified and verified are guaranteed, none is not.")
    stats: Stats


class EmbeddingDetails(EmbeddingRequestDetails):
    """With several inputs: of all together, and of each one in `requests`."""

    requests: list[EmbeddingRequestDetails] | None = None


class EmbeddingResponse(ResponseModel):
    object: Literal["list"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    data: list[EmbeddingData]
    usage: EmbeddingUsage
    holdfast: EmbeddingDetails


class ScoreResponse(ResponseModel):
    object: Literal["holdfast.score"]
    model: str
    system_fingerprint: str
    token_ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    sum: float
    usage: Usage
    holdfast: HoldfastDetails


class ReplayDifference(ResponseModel):
    choice: int
    position: int | None = Field(description="Index of the completion's token, from 0; null: not at a token.")
    what: str


class ReplayResponse(ResponseModel):
    object: Literal["holdfast.replay"]
    same: bool
    compared: bool = Field(description="False if the fingerprints differ and `force` was not set.")
    promised: bool = Field(description="Whether the receipt is of a deterministic request.")
    seal: Literal["intact"]
    signature: Literal["valid", "not checked", "absent"] = Field(
        description="A signature is checked if it names this server's own key."
    )
    fingerprint_differences: list[str]
    difference: ReplayDifference | None
    mode: Mode | None
    num_tokens: int | None = None
    num_logprobs: int | None = None
    usage: Usage | None = None


class CertificateStateInfo(ResponseModel):
    state: Literal["none", "certifying", "certified", "refused", "failed", "revoked"] = Field(
        description="certifying: the certificate is being made while requests are served, and deterministic "
        "answers are verified. failed, revoked: they stay verified."
    )
    checks_done: int = Field(description="While it is being made: the checks that are done.")
    checks: int


class ReplicaInfo(ResponseModel):
    id: str
    node: str
    state: Literal["connecting", "ready", "draining"]
    fingerprint: str
    deterministic: bool = Field(description="Whether deterministic requests go there.")
    requests: int = Field(description="Requests of this frontend that run there.")
    version: str


class HealthResponse(ResponseModel):
    status: Literal["ok", "draining", "starting", "restarting", "stuck"]
    certificate: CertificateStateInfo | None = Field(None, description="Where the certificate stands, if ok.")
    stage: str | None = Field(None, description="What a start is doing, such as Certifying.")
    done: int | None = Field(None, description="How much of the stage is done.")
    total: int | None = Field(None, description="The whole of the stage, in the same unit.")
    seconds_left: float | None = Field(None, description="An estimate for the stage.")
    reason: str | None = Field(None, description="Why the engine process is restarted.")
    seconds: float | None = Field(None, description="How long the restart has taken so far.")
    restarts: int | None = Field(None, description="Engine processes that died so far, if any.")
    replicas: list[ReplicaInfo] | None = Field(None, description="The engine replicas of a pool.")
    waiting_requests: int | None = Field(
        None, description="Requests that continue once the engine process has them again, if any."
    )


class VersionResponse(ResponseModel):
    version: str


class ModelInfo(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None
    about: str | None  # what to expect of a built-in demo model


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelInfo]


class FingerprintInfo(ResponseModel):
    digest: str
    parts: dict[str, Any]


class ReceiptKeyResponse(ResponseModel):
    object: Literal["holdfast.receipt_key"]
    algorithm: Literal["ed25519"]
    key_id: str = Field(description="SHA-256 of the 32 bytes of the public key.")
    public_key: str = Field(description="The public key in PEM.")


class CertificateResponse(ResponseModel):
    object: Literal["holdfast.certificate"]
    determinism: str
    refusal: str | None = Field(description="Why deterministic requests are refused, if they are.")
    fingerprint: FingerprintInfo
    state: CertificateStateInfo
    certificate: dict[str, Any] | None
    revocation: str | None
