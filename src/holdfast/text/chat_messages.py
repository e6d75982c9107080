"""Check and normalise the messages of a chat before a template reads them.

The result is plain JSON: a list of objects with a `role` and a `content` that is one string (or
None in a message with tool calls). Text parts are joined with a line break. Tool arguments in JSON
text are parsed, and reasoning is copied to each of its usual names, because templates differ in
what they read.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidRequest

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Return the messages, normalised. `InvalidRequest` says which message is wrong, and how."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidRequest("messages must be a list of objects with a role and a content")
    if not messages:
        raise InvalidRequest("messages is empty; at least one message is required")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def check_json(name: str, value: object) -> Any:
    """Return a value as plain JSON, or raise `InvalidRequest`."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is not valid Unicode: it contains a lone surrogate") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} cannot be written as JSON: {error}") from None
    return json.loads(text)


def _check_message(index: int, message: object) -> dict[str, Any]:
    name = f"messages[{index}]"
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise InvalidRequest(f"{name} must be an object with a role and a content, not {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f'{name}.role must be a string such as "user", not {_kind(role)}')
    plain: dict[str, Any] = check_json(name, dict(message))
    plain["content"] = _check_content(name, plain)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_parse_arguments(call) for call in _check_calls(name, plain["tool_calls"])]
    return _copy_reasoning(plain)


def _check_content(name: str, message: dict[str, Any]) -> str | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("tool_calls"):
        return None
    if content is None and reasoning_of(message) is not None:
        return ""
    if not isinstance(content, list):
        raise InvalidRequest(f"{name}.content must be a string or a list of text parts, not {_kind(content)}")
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(
                f'{name}.content may only contain parts like {{"type": "text", "text": "..."}}'
            )
        parts.append(part["text"])
    return "\n".join(parts)


def _check_calls(name: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequest(f"{name}.tool_calls must be a list of objects")
    return calls


def _parse_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _copy_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = reasoning_of(message)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def reasoning_of(message: Mapping[str, Any]) -> Any:
    """Return the thinking in a message under any of its names, or None if it has none."""
    return next((message[key] for key in _REASONING_NAMES if message.get(key) is not None), None)


def without_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message without its thinking."""
    return {key: value for key, value in message.items() if key not in _REASONING_NAMES}


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
