"""Translates a body of /v1/messages into the chat completion request with the same prompt and
settings.

    system                      the first system message
    text blocks                 a message; blocks are joined with a line break, turns of one role too
    tool_use                    tool calls of the assistant's message
    tool_result                 messages of role tool
    thinking                    reasoning_content of the assistant's message
    a last assistant message    the beginning of the answer
"""

import json
from collections.abc import Sequence
from typing import Any

from holdfast.server.api.anthropic.requests import (
    ContentBlockParam,
    ConversationFields,
    JsonOutputFormat,
    MessageParam,
    MessagesRequest,
    TextBlockParam,
    ThinkingBlockParam,
    ThinkingConfig,
    ToolChoiceParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from holdfast.server.api.chat_plan import thinking_variables
from holdfast.server.api.content import ConversationBuilder
from holdfast.server.api.schema.requests import (
    ChatCompletionRequest,
    ChatMessage,
    NamedSchema,
    SamplingFields,
    SchemaFormat,
    ServingFields,
)
from holdfast.server.errors import ErrorWords, invalid_value

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

# Fields of chat completions in errors, as this API calls them.
ERROR_WORDS: ErrorWords = (
    (r"\b(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
    (r"\b(tools\[\d+\])\.function\b", r"\1"),
    (r"\bresponse_format\b", "output_config.format"),
    (r"\bstop may have\b", "stop_sequences may have"),
    (r"^stop$", "stop_sequences"),
)


def to_chat(body: MessagesRequest) -> ChatCompletionRequest:
    """Return the chat completion request. Its values were validated with the body."""
    names = (*SamplingFields.model_fields, *ServingFields.model_fields)
    shared = {name: getattr(body, name) for name in names}
    is_hidden = body.thinking is not None and body.thinking.display == "omitted"
    return ChatCompletionRequest.model_construct(
        **{**shared, **_prompt_fields(body)},
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        include_reasoning=not is_hidden,
    )


def to_chat_prompt(body: ConversationFields) -> ChatCompletionRequest:
    """Return a chat completion request with the same prompt."""
    return ChatCompletionRequest.model_construct(**_prompt_fields(body))


def _prompt_fields(body: ConversationFields) -> dict[str, Any]:
    choice, config = body.tool_choice, body.output_config
    messages = to_messages(body.system, body.messages)
    is_prefilled = messages[-1].role == "assistant" and bool(messages[-1].content)
    return {
        "messages": messages,
        "add_generation_prompt": not is_prefilled,
        "continue_final_message": is_prefilled,
        "tools": None if body.tools is None else [_to_tool(tool) for tool in body.tools],
        "tool_choice": None if choice is None else _to_choice(choice),
        "parallel_tool_calls": None if choice is None else not choice.disable_parallel_tool_use,
        "response_format": _to_response_format(_output_format(body)),
        "reasoning_effort": None if config is None else config.effort,
        "chat_template_kwargs": _thinking_variables(body.thinking) | (body.chat_template_kwargs or {}),
    }


def _thinking_variables(thinking: ThinkingConfig | None) -> dict[str, Any]:
    if thinking is None or thinking.type == "adaptive":
        return {}
    return thinking_variables(thinking.type == "enabled")


def to_messages(
    system: str | Sequence[TextBlockParam] | None, turns: Sequence[MessageParam]
) -> list[ChatMessage]:
    """Return the conversation. Raises `ApiError` if a turn has blocks that its role cannot have, or if the
    conversation cannot be answered."""
    conversation = ConversationBuilder()
    call_ids: set[str] = set()
    for index, turn in enumerate(turns):
        if isinstance(turn.content, str):
            _add_text(conversation, turn.role, [turn.content])
        elif turn.role == "assistant":
            _add_assistant(conversation, f"messages[{index}]", turn.content, call_ids)
        else:
            _add_user(conversation, f"messages[{index}]", turn.role, turn.content, call_ids)
    if conversation.is_empty:
        raise invalid_value("messages", "it has only thinking blocks; it must have text.")
    if conversation.ends_with_calls:
        raise invalid_value(
            "messages", "the last message has tool_use blocks; send their tool_result blocks in the next one."
        )
    messages = conversation.messages()
    if len(messages) > 1 and messages[-1].role == "assistant" and not messages[-1].content:
        del messages[-1]  # an empty beginning of the answer is none
    if system is None:
        return messages
    return [ChatMessage(role="system", content="\n".join(_texts_of(system))), *messages]


def _add_text(conversation: ConversationBuilder, role: str, texts: Sequence[str]) -> None:
    """Add a text: turns of one role are one message, but system messages stay apart."""
    if role == "system":
        conversation.add(role, texts)
    else:
        conversation.add_text(role, texts)


def _add_assistant(
    conversation: ConversationBuilder, path: str, blocks: Sequence[ContentBlockParam], call_ids: set[str]
) -> None:
    """Add the thinking, the texts, then the calls."""
    for block in blocks:
        if isinstance(block, ThinkingBlockParam) and block.thinking:
            conversation.add_reasoning(block.thinking)
    texts = [block.text for block in blocks if isinstance(block, TextBlockParam)]
    if texts or not blocks:
        conversation.add_text("assistant", texts)
    for index, block in enumerate(blocks):
        if isinstance(block, ToolUseBlockParam):
            call_ids.add(block.id)
            conversation.add_call(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
        elif isinstance(block, ToolResultBlockParam):
            raise invalid_value(f"{path}.content[{index}]", "tool_result blocks belong into a user message.")


def _add_user(
    conversation: ConversationBuilder,
    path: str,
    role: str,
    blocks: Sequence[ContentBlockParam],
    call_ids: set[str],
) -> None:
    """Add texts and tool results, in their order."""
    if not blocks:
        _add_text(conversation, role, [])
    for index, block in enumerate(blocks):
        where = f"{path}.content[{index}]"
        if isinstance(block, TextBlockParam):
            conversation.add_text(role, [block.text])
        elif isinstance(block, ToolResultBlockParam) and role == "user":
            if block.tool_use_id not in call_ids:
                raise invalid_value(f"{where}.tool_use_id", "no tool_use block before it has this id.")
            _add_result(conversation, block)
        elif not isinstance(block, ThinkingBlockParam):
            raise invalid_value(where, f"a {role} message cannot have {block.type} blocks.")


def _add_result(conversation: ConversationBuilder, block: ToolResultBlockParam) -> None:
    text = "\n".join(_texts_of(block.content or ""))
    text = f"Error: {text}" if block.is_error else text
    conversation.add("tool", [text], tool_call_id=block.tool_use_id)


def _texts_of(content: str | Sequence[TextBlockParam]) -> list[str]:
    return [content] if isinstance(content, str) else [block.text for block in content]


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
        raise invalid_value("output_format", "output_config.format replaces it; send one of them.")
    return config.format


def _to_response_format(output: JsonOutputFormat | None) -> SchemaFormat | None:
    if output is None:
        return None
    named = NamedSchema.model_validate({"name": "output", "schema": output.schema_})
    return SchemaFormat.model_validate({"type": "json_schema", "json_schema": named})
