"""Translates a body of /v1/messages into the chat completion request with the same prompt and
settings.

    system                      the first system message
    text blocks                 a message; blocks are joined with a line break, turns of one role too
    tool_use                    tool calls of the assistant's message
    tool_result                 messages of role tool
    thinking                    nothing
    a last assistant message    the beginning of the answer
"""

import json
from collections.abc import Sequence
from typing import Any

from holdfast.server.api.messages_api.requests import (
    ContentBlockParam,
    ConversationFields,
    JsonOutputFormat,
    MessageParam,
    MessagesRequest,
    TextBlockParam,
    ThinkingBlockParam,
    ToolChoiceParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from holdfast.server.api.schema.requests import ChatCompletionRequest, ChatMessage, SamplingFields
from holdfast.server.errors import ApiError, ErrorWords

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

# Fields of chat completions in errors, as this API calls them.
ERROR_WORDS: ErrorWords = (
    (r"\b(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
    (r"\b(tools\[\d+\])\.function\b", r"\1"),
    (r"\bresponse_format(?:\.json_schema)?\b", "output_config.format"),
    (r"\bstop may have\b", "stop_sequences may have"),
    (r"^stop$", "stop_sequences"),
)


def to_chat(body: MessagesRequest) -> ChatCompletionRequest:
    """The chat completion request. Its values were validated with the body."""
    shared = {name: getattr(body, name) for name in SamplingFields.model_fields}
    return ChatCompletionRequest.model_construct(
        **{**shared, **_prompt_fields(body)}, max_tokens=body.max_tokens, stop=body.stop_sequences
    )


def to_chat_prompt(body: ConversationFields) -> ChatCompletionRequest:
    """A chat completion request with the same prompt."""
    return ChatCompletionRequest.model_construct(**_prompt_fields(body))


def _prompt_fields(body: ConversationFields) -> dict[str, Any]:
    choice, config = body.tool_choice, body.output_config
    messages = to_messages(body.system, body.messages)
    is_prefilled = messages[-1].role == "assistant"
    return {
        "messages": messages,
        "add_generation_prompt": not is_prefilled,
        "continue_final_message": is_prefilled,
        "tools": None if body.tools is None else [_to_tool(tool) for tool in body.tools],
        "tool_choice": None if choice is None else _to_choice(choice),
        "parallel_tool_calls": None if choice is None else not choice.disable_parallel_tool_use,
        "response_format": _to_response_format(_output_format(body)),
        "reasoning_effort": None if config is None else config.effort,
        "chat_template_kwargs": body.chat_template_kwargs,
    }


def to_messages(
    system: str | Sequence[TextBlockParam] | None, turns: Sequence[MessageParam]
) -> list[ChatMessage]:
    """The conversation. Raises `ApiError` if a turn has blocks that its role cannot have, or if the
    conversation cannot be answered."""
    messages: list[ChatMessage] = []
    call_ids: set[str] = set()
    for index, turn in enumerate(turns):
        if isinstance(turn.content, str):
            _append_text(messages, turn.role, [turn.content])
        elif turn.role == "assistant":
            _append_assistant(messages, f"messages[{index}]", turn.content, call_ids)
        else:
            _append_user(messages, f"messages[{index}]", turn.role, turn.content, call_ids)
    if not messages:
        raise _invalid("messages", "it has only thinking blocks; it must have text.")
    if messages[-1].tool_calls:
        raise _invalid(
            "messages", "the last message has tool_use blocks; send their tool_result blocks in the next one."
        )
    if system is not None:
        messages.insert(0, ChatMessage(role="system", content=_text_of(system)))
    return messages


def _append_text(messages: list[ChatMessage], role: str, texts: Sequence[str]) -> None:
    """Add text to the last message of the same role, or a new message."""
    last = messages[-1] if messages else None
    if last is not None and role != "system" and last.role == role and not last.tool_calls:
        messages[-1] = ChatMessage(role=role, content="\n".join([str(last.content), *texts]))
    else:
        messages.append(ChatMessage(role=role, content="\n".join(texts)))


def _append_assistant(
    messages: list[ChatMessage], path: str, blocks: Sequence[ContentBlockParam], call_ids: set[str]
) -> None:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlockParam):
            texts.append(block.text)
        elif isinstance(block, ToolUseBlockParam):
            calls.append(_to_call(block))
            call_ids.add(block.id)
        elif isinstance(block, ToolResultBlockParam):
            raise _invalid(f"{path}.content[{index}]", "tool_result blocks belong into a user message.")
    if texts or not blocks:
        _append_text(messages, "assistant", texts)
    if calls:
        content = messages.pop().content if texts else None
        messages.append(ChatMessage(role="assistant", content=content, tool_calls=calls))


def _append_user(
    messages: list[ChatMessage],
    path: str,
    role: str,
    blocks: Sequence[ContentBlockParam],
    call_ids: set[str],
) -> None:
    """Texts and tool results, in their order."""
    texts: list[str] = []
    for index, block in enumerate(blocks):
        where = f"{path}.content[{index}]"
        if isinstance(block, TextBlockParam):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlockParam) and role == "user":
            if block.tool_use_id not in call_ids:
                raise _invalid(f"{where}.tool_use_id", "no tool_use block before it has this id.")
            if texts:
                _append_text(messages, "user", texts)
                texts = []
            messages.append(_to_result(block))
        elif not isinstance(block, ThinkingBlockParam):
            raise _invalid(where, f"a {role} message cannot have {block.type} blocks.")
    if texts or not blocks:
        _append_text(messages, role, texts)


def _to_result(block: ToolResultBlockParam) -> ChatMessage:
    text = _text_of(block.content or "")
    return ChatMessage(
        role="tool",
        content=f"Error: {text}" if block.is_error else text,
        tool_call_id=block.tool_use_id,
    )


def _to_call(block: ToolUseBlockParam) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": arguments},
    }


def _text_of(content: str | Sequence[TextBlockParam]) -> str:
    """Blocks are joined as the parts of a chat message."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _to_tool(tool: ToolParam) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _to_choice(choice: ToolChoiceParam) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _output_format(body: ConversationFields) -> JsonOutputFormat | None:
    config = body.output_config
    if config is None or config.format is None:
        return body.output_format
    if body.output_format is not None:
        raise _invalid("output_format", "output_config.format replaces it; send one of them.")
    return config.format


def _to_response_format(output: JsonOutputFormat | None) -> dict[str, Any] | None:
    if output is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": output.schema_}}


def _invalid(param: str, why: str) -> ApiError:
    return ApiError(400, f"Invalid '{param}': {why}", param=param, code="invalid_value")
