"""Tools for chat templates that do not support tools.

Such a template renders only role and content, and often requires user and assistant to alternate.
So all tool data is written into contents: the tools and how to call them after the system message,
earlier calls as the model would have written them, results as user messages. A conversation with
tools then works with any template.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.sampling_params import show
from holdfast.errors import InvalidRequest
from holdfast.server.tools.formats import HERMES
from holdfast.server.tools.tool_config import Tool
from holdfast.text.chat_content import check_messages

_NO_SYSTEM = re.compile(r"system role (?:is )?not supported|only user and assistant roles", re.IGNORECASE)

_INTRODUCTION = "You can call functions to help the user. These are the functions, each with a JSON schema of its arguments:"
_INSTRUCTION = (
    "To call a function, answer with a JSON object that has its name and its arguments, in <tool_call> tags. "
    "To call several, write one such block for each:"
)
_EXAMPLE = (
    '<tool_call>\n{"name": "the function\'s name", "arguments": {"an argument": "its value"}}\n</tool_call>'
)
_RESULTS = "Results come back in <tool_response> tags. Where no function is of use, answer as usual."


def supports_system(template: str) -> bool:
    """Return whether a chat template renders system messages; a guess from its source."""
    if _NO_SYSTEM.search(template):
        return False
    return "system" in template or "raise_exception" not in template


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], template: str = ""
) -> list[dict[str, Any]]:
    """Return the conversation with all tool data in contents."""
    plain = _inline_calls(messages)
    if not tools:
        return plain
    description = _describe(tools)
    if not supports_system(template):
        return _put_before_user(plain, description)
    first = plain[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{description}"}, *plain[1:]]
    return [{"role": "system", "content": description}, *plain]


def _describe(tools: Sequence[Tool]) -> str:
    functions = "\n".join(json.dumps(tool.template_dict()["function"], ensure_ascii=False) for tool in tools)
    return f"{_INTRODUCTION}\n<tools>\n{functions}\n</tools>\n\n{_INSTRUCTION}\n{_EXAMPLE}\n\n{_RESULTS}"


def _put_before_user(messages: list[dict[str, Any]], description: str) -> list[dict[str, Any]]:
    for index, message in enumerate(messages):
        if message["role"] == "user":
            inlined = {**message, "content": f"{description}\n\n{message['content']}"}
            return [*messages[:index], inlined, *messages[index + 1 :]]
    return [{"role": "user", "content": description}, *messages]


def _inline_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Write calls and results as contents.

    Results become user messages, merged with the next user message.
    """
    inlined: list[dict[str, Any]] = []
    follows_result = False
    for index, (checked, message) in enumerate(zip(check_messages(messages), messages, strict=True)):
        plain = {key: value for key, value in checked.items() if key not in ("tool_calls", "tool_call_id")}
        is_result = plain["role"] in ("tool", "function")
        if checked.get("tool_calls"):
            calls = [_write_call(index, call) for call in message["tool_calls"]]
            plain["content"] = "\n".join(([plain["content"]] if plain["content"] else []) + calls)
        elif is_result:
            plain = {"role": "user", "content": f"<tool_response>\n{plain['content']}\n</tool_response>"}
        if follows_result and plain["role"] == "user":
            inlined[-1]["content"] += f"\n{plain['content']}"
        else:
            inlined.append(plain)
        follows_result = is_result
    return inlined


def _write_call(index: int, call: Mapping[str, Any]) -> str:
    """Write a call as the model wrote it.

    Arguments keep the client's exact text, so that the prefix cache matches.
    """
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise InvalidRequest(f"every call in messages[{index}].tool_calls must have a function with a name")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise InvalidRequest(
            f"the arguments of a call in messages[{index}] must be JSON text, not {show(arguments)}"
        )
    frame = HERMES.frame
    return f"{frame.opening}{name}{frame.middle}{arguments}{frame.closing}"
