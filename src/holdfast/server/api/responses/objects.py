"""The response models of /v1/responses, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import Field

from holdfast.server.api.schema.objects import (
    ChatCompletionTokenLogprob,
    HoldfastDetails,
    ResponseModel,
)


class OutputTextPart(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatCompletionTokenLogprob]


class OutputMessage(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputTextPart]


class ReasoningTextPart(ResponseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(ResponseModel):
    """The thinking before an answer."""

    id: str
    type: Literal["reasoning"]
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[Any]
    content: list[ReasoningTextPart]
    encrypted_content: None


class OutputFunctionCall(ResponseModel):
    id: str
    type: Literal["function_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str = Field(description="The id that a function_call_output refers to.")
    name: str
    arguments: str = Field(description="JSON text, truncated if the response was.")


class ResponsesError(ResponseModel):
    code: str
    message: str


class IncompleteDetails(ResponseModel):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(ResponseModel):
    cached_tokens: int = Field(description="Prompt tokens found in the prefix cache.")
    cache_write_tokens: int


class OutputTokensDetails(ResponseModel):
    reasoning_tokens: int


class ResponsesUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponsesReasoning(ResponseModel):
    effort: str | None
    summary: str | None


class ResponsesResponse(ResponseModel):
    """A response. It repeats the settings of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponsesError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputReasoning | OutputMessage | OutputFunctionCall]
    usage: ResponsesUsage | None
    system_fingerprint: str = Field(
        description="A digest of everything that decides bits. Same fingerprint, same bits."
    )
    holdfast: HoldfastDetails | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: ResponsesReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False] = Field(description="Nothing is stored.")
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class InputTokens(ResponseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int
