"""What clients get: the shapes of answers, for the OpenAPI document.

Nothing is built from these models, so that an answer costs no validation. They are held to the truth by the fuzz test, which
compares every answer of a running server with them.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.core.results import Stats
from holdfast.server.api.schema.requests import Mode


class Answer(BaseModel):
    """A part of a response. It holds these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Error(Answer):
    message: str = Field(description="What was wrong, what was expected, what to do.")
    type: str = Field(description="The kind of error; it follows from the status.")
    param: str | None = Field(description="The field it is about.")
    code: str | None = Field(description="The error's own name, for programs.")


class ErrorAnswer(Answer):
    """Every error has this shape, whatever its status."""

    error: Error


class CachedTokens(Answer):
    cached_tokens: int = Field(description="Of the prompt, those that were found in the prefix cache.")


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class HoldfastOfOne(Answer):
    mode: Mode = Field(description="How the answer was made: certified and verified keep the guarantee.")
    seed: int
    stats: Stats
    receipt: dict[str, Any] | None = Field(None, description="On request; see docs/receipt.schema.json.")


class ThoughtAnswer(Answer):
    """What a model that thinks wrote behind a chunk of prompt and answer. A trivial thought has no tokens."""

    index: int = Field(description="Of which choice.")
    chunk: int
    position: int = Field(description="Of the chunk's last token, in prompt and answer.")
    text: str
    token_ids: list[int]


class HoldfastObject(HoldfastOfOne):
    """How an answer was come by. Where there are several prompts: all together, and each by itself."""

    requests: list[HoldfastOfOne] | None = None
    thoughts: list[ThoughtAnswer] | None = Field(None, description="Only of a model that thinks.")


class Completed(Answer):
    """What every completion begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str = Field(
        description="The digest of all that decides bits. Same fingerprint, same bits."
    )
    usage: Usage
    holdfast: HoldfastObject


class TextLogprobsAnswer(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    index: int
    text: str
    logprobs: TextLogprobsAnswer | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class TextCompletion(Completed):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[ChatLogprob]
    refusal: None


class CalledFunction(Answer):
    name: str
    arguments: str = Field(description="JSON text; cut off where the answer was.")


class CalledTool(Answer):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[CalledTool] | None = None


class ChatChoiceAnswer(Answer):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class ChatCompletion(Completed):
    object: Literal["chat.completion"]
    choices: list[ChatChoiceAnswer]
    prompt_token_ids: list[int] | None = None


class Tokens(Answer):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Answer):
    prompt: str


class Score(Answer):
    object: Literal["holdfast.score"]
    model: str
    system_fingerprint: str
    token_ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    sum: float
    usage: Usage
    holdfast: HoldfastObject


class ReplayDifference(Answer):
    choice: int
    position: int | None = Field(description="Counts the answer's tokens from 0; null: not at a token.")
    what: str


class ReplayAnswer(Answer):
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


class Health(Answer):
    status: Literal["ok", "draining", "starting", "stuck"]


class Version(Answer):
    version: str


class Model(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class Models(Answer):
    object: Literal["list"]
    data: list[Model]


class FingerprintAnswer(Answer):
    digest: str
    parts: dict[str, Any]


class CertificateAnswer(Answer):
    object: Literal["holdfast.certificate"]
    determinism: str
    refusal: str | None = Field(description="Why deterministic requests are refused, where they are.")
    fingerprint: FingerprintAnswer
    certificate: dict[str, Any] | None
    revocation: str | None
