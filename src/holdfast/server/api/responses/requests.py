"""The request body of /v1/responses.

Fields of features that need a store or run on OpenAI's servers are refused with the reason.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from holdfast.server.api.schema.requests import (
    MAX_MESSAGES,
    FunctionName,
    NamedSchema,
    ReasoningEffort,
    RequestModel,
    ReturnedModel,
    SamplingFields,
    ServingFields,
)
from holdfast.server.http.body import Many
from holdfast.server.http.validation_errors import ByType, null_only, refuse, refuse_unless

_IGNORED = "Accepted and ignored."
_NOT_STORED = "responses are not stored; send the whole conversation as input"


class InputText(ReturnedModel):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = Field(None, description=_IGNORED)


class OutputText(ReturnedModel):
    type: Literal["output_text"]
    text: str
    annotations: Many[Any] | None = Field(None, description=_IGNORED)
    logprobs: Many[Any] | None = Field(None, description=_IGNORED)


class Refusal(ReturnedModel):
    type: Literal["refusal"]
    refusal: str


ContentPart = Annotated[
    InputText | OutputText | Refusal,
    ByType(
        "content may only have parts of type input_text and output_text; images, audio and files are not read"
    ),
]
TextInput = Annotated[
    InputText, ByType("an output may only have parts of type input_text; images and files are not read")
]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(ReturnedModel):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Many[ContentPart]
    id: str | None = Field(None, description=_IGNORED)
    status: ItemStatus | None = Field(None, description=_IGNORED)
    phase: str | None = Field(None, description=_IGNORED)


class FunctionCallItem(ReturnedModel):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str = Field(description="JSON text.")
    id: str | None = Field(None, description=_IGNORED)
    status: ItemStatus | None = Field(None, description=_IGNORED)
    caller: dict[str, Any] | None = Field(None, description=_IGNORED)


class FunctionCallOutputItem(ReturnedModel):
    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: str | Many[TextInput]
    id: str | None = Field(None, description=_IGNORED)
    status: ItemStatus | None = Field(None, description=_IGNORED)
    name: str | None = Field(None, description=_IGNORED)
    caller: dict[str, Any] | None = Field(None, description=_IGNORED)


class ReasoningText(ReturnedModel):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(ReturnedModel):
    """Its content goes to the chat template, which decides what the model sees of it."""

    type: Literal["reasoning"]
    id: str | None = Field(None, description=_IGNORED)
    summary: Many[Any] | None = Field(None, description=_IGNORED)
    content: Many[ReasoningText] | None = None
    encrypted_content: str | None = Field(None, description=_IGNORED)
    status: ItemStatus | None = Field(None, description=_IGNORED)


InputItem = Annotated[
    MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem,
    ByType(
        "input may only have items of type message, function_call, function_call_output and reasoning; "
        "built-in tools are not run, and nothing is stored that could be referred to",
        default="message",
    ),
]


class FunctionTool(RequestModel):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of the arguments.")
    strict: bool | None = None
    output_schema: dict[str, Any] | None = Field(None, description=_IGNORED)
    allowed_callers: Many[Literal["direct"]] | None = None
    defer_loading: bool | None = Field(None, description=_IGNORED)

    @model_validator(mode="before")
    @classmethod
    def _refuse_built_in(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type", "function") != "function":
            refuse("only tools of type function are supported; built-in tools are not run by this server")
        return value


class NamedTool(RequestModel):
    type: Literal["function"]
    name: str


class PlainFormat(RequestModel):
    type: Literal["text", "json_object"]


class JsonSchemaFormat(NamedSchema):
    type: Literal["json_schema"]


class TextConfig(RequestModel):
    format: Annotated[PlainFormat | JsonSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: str | None = Field(None, description=_IGNORED)


class Reasoning(RequestModel):
    effort: ReasoningEffort | None = Field(
        None, description="Passed to the chat template as `reasoning_effort`."
    )
    summary: str | None = Field(None, description=_IGNORED)
    generate_summary: str | None = Field(None, description=_IGNORED)
    context: str | None = Field(None, description=_IGNORED)
    mode: str | None = Field(None, description=_IGNORED)


class ResponseStreamOptions(RequestModel):
    include_obfuscation: bool | None = Field(None, description=_IGNORED)


Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class InputFields(RequestModel):
    """The fields that make the prompt."""

    input: str | Annotated[Many[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = Field(None, description="A system message before the input.")
    tools: Many[FunctionTool] | None = None
    tool_choice: (
        Annotated[
            Literal["none", "auto", "required"] | NamedTool,
            refuse_unless(
                lambda value: not isinstance(value, dict) or value.get("type", "function") == "function",
                "only none, auto, required and a function can be chosen; send only the tools that may be called",
            ),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: (
        Annotated[
            Literal["disabled"],
            refuse_unless(
                lambda value: value != "auto", "input is never truncated; shorten it, or omit truncation"
            ),
        ]
        | None
    ) = None
    previous_response_id: Annotated[None, null_only(_NOT_STORED)] = None
    conversation: Annotated[None, null_only(_NOT_STORED)] = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesRequest(SamplingFields, ServingFields, InputFields):
    """/v1/responses"""

    max_output_tokens: int | None = Field(None, ge=1, le=1 << 24)
    stop: str | Many[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: Many[Include] | None = Field(
        None, description="message.output_text.logprobs adds logprobs; the others have no effect."
    )
    metadata: dict[str, str] | None = Field(None, description="Returned as it is.")
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = Field(None, description="Accepted and ignored: nothing is stored.")
    service_tier: str | None = Field(None, description=_IGNORED)
    safety_identifier: str | None = Field(None, description=_IGNORED)
    prompt_cache_key: str | None = Field(
        None, description="Accepted and ignored: prefixes are always cached."
    )
    prompt_cache_retention: str | None = Field(None, description=_IGNORED)
    prompt_cache_options: dict[str, Any] | None = Field(None, description=_IGNORED)
    max_tool_calls: int | None = Field(
        None, ge=1, le=1 << 24, description="Accepted and ignored: it limits built-in tools."
    )
    background: Annotated[
        bool | None,
        refuse_unless(
            lambda value: value is not True, "a response is made while the client waits; omit background"
        ),
    ] = None
    prompt: Annotated[None, null_only("prompt templates are not stored; send the text as input")] = None
    context_management: Annotated[
        None, null_only("conversations are not compacted; shorten the input instead")
    ] = None
    moderation: Annotated[None, null_only("moderation is not supported")] = None


class InputTokensRequest(InputFields):
    """/v1/responses/input_tokens"""

    model: str | None = Field(None, max_length=1024)
