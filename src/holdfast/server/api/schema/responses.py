"""What clients get: the shapes of answers, for the OpenAPI document.

Nothing is built from these models, so that an answer costs no validation. They are held to the truth by the fuzz test, which
compares every answer of a running server with them.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.core.results import Stats
from holdfast.server.api.schema.requests import Mode


class ResponseModel(BaseModel):
    """A part of a response. It holds these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class ErrorInfo(ResponseModel):
    message: str = Field(description="What was wrong, what was expected, what to do.")
    type: str = Field(description="The kind of error; it follows from the status.")
    param: str | None = Field(description="The field it is about.")
    code: str | None = Field(description="The error's own name, for programs.")


class ErrorResponse(ResponseModel):
    """Every error has this shape, whatever its status."""

    error: ErrorInfo


class PromptTokensDetails(ResponseModel):
    cached_tokens: int = Field(description="Of the prompt, those that were found in the prefix cache.")


class Usage(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class RequestDetails(ResponseModel):
    mode: Mode = Field(description="How the answer was made: certified and verified keep the guarantee.")
    seed: int
    stats: Stats
    receipt: dict[str, Any] | None = Field(None, description="On request; see docs/receipt.schema.json.")


class ThoughtInfo(ResponseModel):
    """What a model that thinks wrote behind a chunk of prompt and answer. A trivial thought has no tokens."""

    index: int = Field(description="Of which choice.")
    chunk: int
    position: int = Field(description="Of the chunk's last token, in prompt and answer.")
    text: str
    token_ids: list[int]


class HoldfastDetails(RequestDetails):
    """How an answer was come by. Where there are several prompts: all together, and each by itself."""

    requests: list[RequestDetails] | None = None
    thoughts: list[ThoughtInfo] | None = Field(None, description="Only of a model that thinks.")


class CompletionBase(ResponseModel):
    """What every completion begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str = Field(
        description="The digest of all that decides bits. Same fingerprint, same bits."
    )
    usage: Usage
    holdfast: HoldfastDetails


class CompletionLogprobs(ResponseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
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
    arguments: str = Field(description="JSON text; cut off where the answer was.")


class MessageToolCall(ResponseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatCompletionMessage(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[MessageToolCall] | None = None


class ChatCompletionChoice(ResponseModel):
    index: int
    message: ChatCompletionMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class ChatCompletion(CompletionBase):
    object: Literal["chat.completion"]
    choices: list[ChatCompletionChoice]
    prompt_token_ids: list[int] | None = None


class TokenizeResponse(ResponseModel):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(ResponseModel):
    prompt: str


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
    position: int | None = Field(description="Counts the answer's tokens from 0; null: not at a token.")
    what: str


class ReplayResponse(ResponseModel):
    object: Literal["holdfast.replay"]
    same: bool
    compared: bool = Field(description="False where the fingerprints differ and `force` was not set.")
    promised: bool = Field(description="Whether the receipt is one of a deterministic answer.")
    fingerprint_differences: list[str]
    difference: ReplayDifference | None
    mode: Mode | None
    num_tokens: int | None = None
    num_logprobs: int | None = None
    usage: Usage | None = None


class HealthResponse(ResponseModel):
    status: Literal["ok", "draining", "starting", "stuck"]


class VersionResponse(ResponseModel):
    version: str


class ModelInfo(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelInfo]


class FingerprintInfo(ResponseModel):
    digest: str
    parts: dict[str, Any]


class CertificateResponse(ResponseModel):
    object: Literal["holdfast.certificate"]
    determinism: str
    refusal: str | None = Field(description="Why deterministic requests are refused, where they are.")
    fingerprint: FingerprintInfo
    certificate: dict[str, Any] | None
    revocation: str | None
