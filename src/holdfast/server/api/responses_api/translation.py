"""Translates a body of /v1/responses into the chat completion request with the same prompt and
settings.

    instructions                  the first system message
    message                       a message
    function_call ...             tool calls of the assistant's message before them, or of a new one
    function_call_output          a message of role tool
    reasoning                     nothing
"""

from collections.abc import Sequence
from typing import Any

from holdfast.server.api.responses_api.requests import (
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
from holdfast.server.api.schema.requests import ChatCompletionRequest, ChatMessage, SamplingFields
from holdfast.server.errors import ApiError, ErrorWords

LOGPROBS = "message.output_text.logprobs"

# Fields of chat completions in errors, as this API calls them.
ERROR_WORDS: ErrorWords = (
    (r"\b(?:max_completion_tokens|max_tokens)\b", "max_output_tokens"),
    (r"^messages$", "input"),
    (r"\b(tools\[\d+\])\.function\b", r"\1"),
    (r"\bresponse_format(?:\.json_schema)?\b", "text.format"),
)


def to_chat(body: ResponsesRequest) -> ChatCompletionRequest:
    """The chat completion request. Its values were validated with the body."""
    shared = {name: getattr(body, name) for name in SamplingFields.model_fields}
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
    """A chat completion request with the same prompt."""
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
    """The conversation. Raises `ApiError` if it is empty or answers a call that was not made."""
    messages: list[ChatMessage] = []
    if instructions is not None:
        messages.append(ChatMessage(role="system", content=instructions))
    if isinstance(items, str):
        return [*messages, ChatMessage(role="user", content=items)]
    num_instructions = len(messages)
    call_ids: set[str] = set()
    for index, item in enumerate(items):
        if isinstance(item, MessageItem):
            messages.append(ChatMessage(role=item.role, content=_text_of(item.content)))
        elif isinstance(item, FunctionCallItem):
            call_ids.add(item.call_id)
            _append_call(messages, item)
        elif isinstance(item, FunctionCallOutputItem):
            if item.call_id not in call_ids:
                raise _unknown_call(f"input[{index}].call_id", item.call_id)
            messages.append(
                ChatMessage(role="tool", content=_text_of(item.output), tool_call_id=item.call_id)
            )
    if len(messages) == num_instructions:
        raise ApiError(
            400, "input has only reasoning items; it must have a message", param="input", code="invalid_value"
        )
    return messages


def _append_call(messages: list[ChatMessage], item: FunctionCallItem) -> None:
    call = {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant", content=None, tool_calls=[call]))
        return
    last = messages[-1]
    messages[-1] = ChatMessage(
        role="assistant", content=last.content, tool_calls=[*(last.tool_calls or ()), call]
    )


def _text_of(content: str | Sequence[InputText | OutputText | Refusal]) -> str:
    """Parts are joined as in a chat message."""
    if isinstance(content, str):
        return content
    return "\n".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)


def _to_tool(tool: FunctionTool) -> dict[str, Any]:
    function = {name: getattr(tool, name) for name in ("name", "description", "parameters", "strict")}
    return {"type": "function", "function": function}


def _to_named(choice: NamedTool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}}


def _to_response_format(text: TextConfig | None) -> dict[str, Any] | None:
    if text is None or text.format is None:
        return None
    if isinstance(text.format, JsonSchemaFormat):
        given = text.format.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": "json_schema", "json_schema": given}
    return {"type": text.format.type}


def _unknown_call(param: str, call_id: str) -> ApiError:
    shown = call_id if len(call_id) <= 64 else f"{call_id[:64]}..."
    message = f"'{param}' is {shown!r}, which no function_call before it has."
    return ApiError(400, message, param=param, code="invalid_value")
