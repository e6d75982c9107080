"""The response models of /v1/messages, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import Field

from holdfast.server.api.schema.objects import HoldfastDetails, ResponseModel


class ErrorDetails(ResponseModel):
    error_code: str = Field(description="A stable name of the error, for programs.")


class AnthropicError(ResponseModel):
    type: str = Field(description="The kind of error, which follows from the status.")
    message: str = Field(description="What was wrong, what was expected, what to do.")
    details: ErrorDetails | None = None


class AnthropicErrorResponse(ResponseModel):
    """The body of every error response of Anthropic's routes."""

    type: Literal["error"]
    error: AnthropicError
    request_id: str | None


class MessageThinkingBlock(ResponseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="A digest of the thinking.")


class MessageTextBlock(ResponseModel):
    type: Literal["text"]
    text: str


class MessageToolUseBlock(ResponseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(ResponseModel):
    input_tokens: int = Field(description="Prompt tokens that were not in the prefix cache.")
    cache_read_input_tokens: int = Field(description="Prompt tokens found in the prefix cache.")
    cache_creation_input_tokens: int
    output_tokens: int


class MessageResponse(ResponseModel):
    """A message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageThinkingBlock | MessageTextBlock | MessageToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None = Field(description="The stop sequence that ended the message.")
    usage: MessageUsage
    system_fingerprint: str = Field(
        description="A digest of everything that decides bits. Same fingerprint, same bits."
    )
    holdfast: HoldfastDetails
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class MessageTokensCount(ResponseModel):
    input_tokens: int
