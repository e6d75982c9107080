"""Translates a body of /v1/responses into the chat completion request with the same prompt and
settings.

    instructions                  the first system message
    message                       a message
    function_call ...             tool calls of the assistant's message before them, or of a new one
    function_call_output          a message of role tool
    reasoning                     reasoning_content of the assistant's message after it
"""

from collections.abc import Sequence
from typing import Any

from holdfast.server.api.content import ConversationBuilder
from holdfast.server.api.responses.requests import (
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    InputFields,
    InputItem,
    InputText,
    JsonSchemaFormat,
    MessageItem,
    NamedTool,
    OutputText,
    Refusal,
    ResponsesRequest,
    TextConfig,
)
from holdfast.server.api.schema.requests import (
    ChatCompletionRequest,
    ChatMessage,
    ObjectFormat,
    SamplingFields,
    SchemaFormat,
    ServingFields,
)
from holdfast.server.errors import ErrorWords, invalid_value

LOGPROBS = "message.output_text.logprobs"

# Fields of chat completions in errors, as this API calls them.
ERROR_WORDS: ErrorWords = (
    (r"\b(?:max_completion_tokens|max_tokens)\b", "max_output_tokens"),
    (r"^messages$", "input"),
    (r"\b(tools\[\d+\])\.function\b", r"\1"),
    (r"\bresponse_format\b", "text.format"),
)


def to_chat(body: ResponsesRequest) -> ChatCompletionRequest:
    """Return the chat completion request. Its values were validated with the body."""
    names = (*SamplingFields.model_fields, *ServingFields.model_fields)
    shared = {name: getattr(body, name) for name in names}
    logprobs = bool(body.top_logprobs) or LOGPROBS in (body.include or ())
    return ChatCompletionRequest.model_construct(
        **shared,
        **_prompt_fields(body),
        max_tokens=body.max_output_tokens,
        stop=body.stop,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else None,
    )


def to_chat_prompt(body: InputFields) -> ChatCompletionRequest:
    """Return a chat completion request with the same prompt."""
    return ChatCompletionRequest.model_construct(**_prompt_fields(body))


def _prompt_fields(body: InputFields) -> dict[str, Any]:
    choice = body.tool_choice
    return {
        "messages": to_messages(body.instructions, body.input),
        "tools": None if body.tools is None else [_to_tool(tool) for tool in body.tools],
        "tool_choice": _to_named(choice) if isinstance(choice, NamedTool) else choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _to_response_format(body.text),
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "chat_template_kwargs": body.chat_template_kwargs,
    }


def to_messages(instructions: str | None, items: str | Sequence[InputItem]) -> list[ChatMessage]:
    """Return the conversation. Raises `ApiError` if it is empty or answers a call that was not made."""
    conversation = ConversationBuilder()
    call_ids: set[str] = set()
    if isinstance(items, str):
        conversation.add("user", [items])
        items = ()
    for index, item in enumerate(items):
        if isinstance(item, MessageItem):
            conversation.add(item.role, _texts_of(item.content))
        elif isinstance(item, FunctionCallItem):
            call_ids.add(item.call_id)
            conversation.add_call(item.call_id, item.name, item.arguments)
        elif isinstance(item, FunctionCallOutputItem):
            if item.call_id not in call_ids:
                raise invalid_value(f"input[{index}].call_id", "no function_call before it has this id.")
            conversation.add("tool", _texts_of(item.output), tool_call_id=item.call_id)
        else:
            for part in item.content or ():
                conversation.add_reasoning(part.text)
    if conversation.is_empty:
        raise invalid_value("input", "it has only reasoning items; it must have a message.")
    messages = conversation.messages()
    return messages if instructions is None else [ChatMessage(role="system", content=instructions), *messages]


def _texts_of(content: str | Sequence[InputText | OutputText | Refusal]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.refusal if isinstance(part, Refusal) else part.text for part in content]


def _to_tool(tool: FunctionTool) -> dict[str, Any]:
    function = {name: getattr(tool, name) for name in ("name", "description", "parameters", "strict")}
    return {"type": "function", "function": function}


def _to_named(choice: NamedTool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}}


def _to_response_format(text: TextConfig | None) -> ObjectFormat | SchemaFormat | None:
    if text is None or text.format is None or text.format.type == "text":
        return None
    if isinstance(text.format, JsonSchemaFormat):
        return SchemaFormat.model_validate({"type": "json_schema", "json_schema": text.format})
    return ObjectFormat.model_validate({"type": "json_object"})
