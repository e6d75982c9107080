"""What clients may send. A field nobody knows is refused, as OpenAI refuses it; `null` is a field left out.

The models say which fields there are and of which type; what a value may be is said once, by `SamplingParams` and the limits.
Fields OpenAI knows and that decide nothing here are taken and ignored; those that ask for something we do not do are refused
unless they ask for nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.server.api.schema.field_schemas import (
    Biases,
    ForcedThoughts,
    ResponseFormat,
    StructuredOutputs,
    ToolChoices,
    ToolObject,
)
from holdfast.server.http.json_body import Many

TokenId = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
TokenIds = Many[TokenId]
_MOST_MESSAGES = 2048  # as OpenAI has it
_MOST_ALLOWED = 1 << 16


class RequestModel(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = Field(None, description="Taken and ignored.")


class ThinkingFields(RequestModel):
    """What a model that thinks may be told."""

    think: bool | None = Field(
        None, description="False: a model that thinks does without. True: refused by a model that does not."
    )
    forced_thoughts: ForcedThoughts | None = Field(
        None,
        description="Numbers of chunks, as text, and the token ids of the thought that stands behind each, "
        "whatever the model would think there; [] is no thought.",
    )


class GenerationRequest(ThinkingFields):
    """What chat and plain completions have in common."""

    model: str | None = Field(
        None, max_length=1024, description="One of /v1/models; without it, the one that is served."
    )
    deterministic: bool | None = Field(
        None, description="Ask for the guarantee: the same bits, whatever else runs."
    )
    return_receipt: bool | None = Field(None, description="Put the receipt into the `holdfast` object.")
    return_token_ids: bool | None = Field(
        None, description="Put the token ids of prompt and answers into the response."
    )
    max_tokens: int | None = Field(None, ge=0, le=1 << 24)
    min_tokens: int | None = Field(None, ge=0, le=1 << 24)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=(1 << 31) - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1, le=128)
    seed: int | None = Field(None, ge=0, le=(1 << 64) - 1)
    stop: str | Many[str] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: Biases | None = Field(
        None, description="Token ids, as text, and what is added to their logits."
    )
    allowed_token_ids: TokenIds | None = Field(None, max_length=_MOST_ALLOWED)
    bad_words: Many[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = Field(
        None, description="One of json, regex, choice, grammar, json_object."
    )
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Many[str] | None = None
    guided_grammar: str | None = None
    user: str | None = Field(None, description="Taken and ignored.")
    response_format: ResponseFormat | None = None


class CompletionRequest(GenerationRequest):
    """/v1/completions"""

    prompt: str | TokenIds | Many[str] | Many[TokenIds] = Field(
        description="Text or token ids, one or a batch of them."
    )
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = Field(None, ge=1, le=128, description="Only as many as n.")
    suffix: str | None = Field(None, description="Not supported.")
    add_special_tokens: bool | None = Field(
        None, description="Whether a text prompt gets the tokenizer's own frame."
    )


class TextPart(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """A template may look for more than these fields, so others are passed on."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: str = Field(min_length=1, max_length=64)
    content: str | Many[TextPart] | None = None
    name: str | None = None
    tool_calls: Many[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatCompletionRequest(GenerationRequest):
    """/v1/chat/completions"""

    messages: Many[ChatMessage] = Field(min_length=1, max_length=_MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=1 << 24)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Many[ToolObject] | None = None
    tool_choice: ToolChoices | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    modalities: Many[str] | None = Field(None, description='Only ["text"].')
    metadata: dict[str, str] | None = Field(None, description="Taken and ignored.")
    store: bool | None = Field(None, description="Taken and ignored: nothing is stored.")
    service_tier: str | None = Field(None, description="Taken and ignored.")
    safety_identifier: str | None = Field(None, description="Taken and ignored.")
    prompt_cache_key: str | None = Field(
        None, description="Taken and ignored: prefixes are found by themselves."
    )
    prompt_cache_retention: str | None = Field(None, description="Taken and ignored.")
    reasoning_effort: str | None = Field(None, description="Shown to the chat template.")
    verbosity: str | None = Field(None, description="Taken and ignored.")
    prediction: None = Field(None, description="Not supported: null only.")
    audio: None = Field(None, description="Not supported: null only.")
    web_search_options: None = Field(None, description="Not supported: null only.")
    functions: None = Field(None, description="Not supported: null only; use tools.")
    function_call: None = Field(None, description="Not supported: null only; use tool_choice.")


class TokenizeRequest(RequestModel):
    """/tokenize: a text, or a conversation as the chat template writes it."""

    model: str | None = Field(None, max_length=1024)
    prompt: str | None = None
    messages: Many[ChatMessage] | None = Field(None, max_length=_MOST_MESSAGES)
    tools: Many[ToolObject] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """/detokenize"""

    model: str | None = Field(None, max_length=1024)
    tokens: TokenIds
    skip_special_tokens: bool | None = None


class ScoreRequest(ThinkingFields):
    """/v1/score: the logprobs of a completion behind a prompt."""

    model: str | None = Field(None, max_length=1024)
    prompt: str | TokenIds
    completion: str | TokenIds
    deterministic: bool | None = Field(None, description="True unless it says otherwise.")
    return_receipt: bool | None = None


class ReplayRequest(RequestModel):
    """/v1/replay: ask a receipt's request again and compare every bit."""

    receipt: dict[str, Any]
    prompt_token_ids: TokenIds | None = Field(None, description="Where the receipt leaves its prompt out.")
    force: bool | None = Field(None, description="Compare even where the fingerprints differ.")


Mode = Literal["certified", "verified", "none"]
