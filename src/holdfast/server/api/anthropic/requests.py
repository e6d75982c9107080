"""The request bodies of /v1/messages and /v1/messages/count_tokens.

Fields of features that run on Anthropic's servers are refused with the reason. `cache_control` is
accepted everywhere and ignored: prefixes are always cached.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from holdfast.server.api.schema.requests import (
    MAX_MESSAGES,
    FunctionName,
    ReasoningEffort,
    RequestModel,
    ReturnedModel,
    SamplingFields,
    ServingFields,
)
from holdfast.server.http.body import Many
from holdfast.server.http.validation_errors import ByType, null_only, refuse, refuse_unless

_IGNORED = "Accepted and ignored."
_ID = Field(min_length=1, max_length=256)

CacheControl = Annotated[dict[str, Any] | None, Field(description=_IGNORED)]


class BlockModel(ReturnedModel):
    """A content block."""

    cache_control: CacheControl = None


class TextBlockParam(BlockModel):
    type: Literal["text"]
    text: str
    citations: Many[Any] | None = Field(None, description=_IGNORED)


class ToolUseBlockParam(BlockModel):
    type: Literal["tool_use"]
    id: Annotated[str, _ID]
    name: str = Field(min_length=1)
    input: dict[str, Any]
    caller: dict[str, Any] | None = Field(None, description=_IGNORED)


ResultText = Annotated[
    TextBlockParam, ByType("a tool result may only have text; images and documents are not read")
]


class ToolResultBlockParam(BlockModel):
    type: Literal["tool_result"]
    tool_use_id: Annotated[str, _ID]
    content: str | Many[ResultText] | None = None
    is_error: bool | None = Field(None, description="True: `Error: ` is put before the content.")


class ThinkingBlockParam(BlockModel):
    """Thinking goes to the chat template, which decides what the model sees of it. Redacted thinking
    is ignored: it comes from another model."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = Field(None, description=_IGNORED)
    data: str | None = Field(None, description=_IGNORED)


ContentBlockParam = Annotated[
    TextBlockParam | ToolUseBlockParam | ToolResultBlockParam | ThinkingBlockParam,
    ByType(
        "content may only have blocks of type text, tool_use, tool_result and thinking; images and documents are "
        "not read, and server tools are not run"
    ),
]


class MessageParam(RequestModel):
    role: Literal["user", "assistant", "system"]
    content: str | Many[ContentBlockParam]


class ToolParam(RequestModel):
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="A JSON schema of the input.")
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl = None
    allowed_callers: Many[Literal["direct"]] | None = None
    defer_loading: bool | None = Field(None, description=_IGNORED)
    eager_input_streaming: bool | None = Field(None, description=_IGNORED)
    input_examples: Many[Any] | None = Field(None, description=_IGNORED)

    @model_validator(mode="before")
    @classmethod
    def _refuse_built_in(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") not in (None, "custom"):
            refuse("only tools with a name and an input_schema are supported; built-in tools are not run")
        return value


class ToolChoiceParam(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description='Of the tool, with the type "tool".')
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> "ToolChoiceParam":
        if (self.type == "tool") != (self.name is not None):
            raise ValueError('the type "tool" needs a name, and no other type has one.')
        return self


class JsonOutputFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    format: JsonOutputFormat | None = None
    effort: ReasoningEffort | None = Field(
        None, description="Passed to the chat template as `reasoning_effort`."
    )


class ThinkingConfig(RequestModel):
    """disabled and enabled set the template variables enable_thinking and thinking; adaptive leaves
    the template's default."""

    type: Literal["disabled", "enabled", "adaptive"]
    budget_tokens: int | None = Field(
        None, ge=1, le=1 << 24, description="Accepted and ignored: max_tokens bounds thinking and answer."
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="omitted: no thinking blocks. summarized: the whole thinking."
    )


class MetadataParam(RequestModel):
    user_id: str | None = None


class ConversationFields(RequestModel):
    """The fields that make the prompt."""

    model: str | None = Field(
        None, max_length=1024, description="One of /v1/models; the served model if omitted."
    )
    messages: Many[MessageParam] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: str | Many[TextBlockParam] | None = None
    tools: Many[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutputFormat | None = Field(
        None, description="The older name of output_config.format."
    )
    thinking: ThinkingConfig | None = Field(
        None, description="Models whose thinking is separated only, except disabled."
    )
    cache_control: CacheControl = None
    speed: str | None = Field(None, description=_IGNORED)
    mcp_servers: Annotated[
        list[Any] | None,
        refuse_unless(
            lambda value: value == [], "this server connects to no other server; call tools in the client"
        ),
    ] = None
    context_management: Annotated[
        None, null_only("conversations are not edited; shorten the messages instead")
    ] = None
    user_profile_id: str | None = Field(None, description=_IGNORED)
    workspace_id: str | None = Field(None, description=_IGNORED)
    chat_template_kwargs: dict[str, Any] | None = None


class CountTokensRequest(ConversationFields):
    """/v1/messages/count_tokens"""


class MessagesRequest(SamplingFields, ServingFields, ConversationFields):
    """/v1/messages"""

    max_tokens: int = Field(ge=1, le=1 << 24)
    stop_sequences: Many[str] | None = None
    metadata: MetadataParam | None = Field(None, description=_IGNORED)
    service_tier: str | None = Field(None, description=_IGNORED)
    inference_geo: str | None = Field(None, description=_IGNORED)
    container: Annotated[None, null_only("this server runs no code")] = None
    diagnostics: Annotated[None, null_only("messages are not stored, so they cannot be compared")] = None
