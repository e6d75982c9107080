"""Tools for chat templates that know nothing of tools.

Such a template shows a role and a content, and often insists on users and assistants taking turns. So everything is said in
contents: the tools, and how to call them, behind the system message; earlier calls as the model would have written them;
results as what the user says next. A conversation with tools then works with any template.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.sampling_params import show
from holdfast.errors import InvalidRequest
from holdfast.server.tools.formats import HERMES
from holdfast.server.tools.tool_config import Tool, ToolConfig
from holdfast.text.chat_messages import check_messages

_TEXT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_TOOLS = re.compile(r"(?<![.\w])tools\b")
_NO_SYSTEM = re.compile(r"system role (?:is )?not supported|only user and assistant roles", re.IGNORECASE)
_BLOCK_ENDS = {"{%": "%}", "{{": "}}", "{#": "#}"}
_BLOCK = re.compile(r"\{[%{#]")

_INTRODUCTION = "You can call functions to help the user. These are the functions, each with a JSON schema of its arguments:"
_INSTRUCTION = (
    "To call a function, answer with a JSON object that has its name and its arguments, in <tool_call> tags. "
    "To call several, write one such block for each:"
)
_EXAMPLE = (
    '<tool_call>\n{"name": "the function\'s name", "arguments": {"an argument": "its value"}}\n</tool_call>'
)
_RESULTS = "Results come back in <tool_response> tags. Where no function is of use, answer as usual."


def knows_tools(template: str) -> bool:
    """Whether a chat template looks at `tools` at all."""
    at = 0
    while (block := _BLOCK.search(template, at)) is not None:
        end = template.find(_BLOCK_ENDS[block[0]], block.end())
        if end < 0:
            return False
        if block[0] != "{#" and _TOOLS.search(_TEXT.sub("", template[block.end() : end])):
            return True
        at = end + 2
    return False


def takes_system(template: str) -> bool:
    """Whether a chat template shows a system message, as far as one can see."""
    if _NO_SYSTEM.search(template):
        return False
    return "system" in template or "raise_exception" not in template


def describe_tools(
    messages: Sequence[Mapping[str, Any]], use: ToolConfig, template: str = ""
) -> list[dict[str, Any]]:
    """The conversation for a template that does not know tools: nothing in it but roles and contents."""
    plain = _tell_calls(messages)
    if not use.offered:
        return plain
    description = _describe(use.offered)
    if not takes_system(template):
        return _put_before_user(plain, description)
    first = plain[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{description}"}, *plain[1:]]
    return [{"role": "system", "content": description}, *plain]


def _describe(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool.shown()["function"], ensure_ascii=False) for tool in tools)
    return f"{_INTRODUCTION}\n<tools>\n{listed}\n</tools>\n\n{_INSTRUCTION}\n{_EXAMPLE}\n\n{_RESULTS}"


def _put_before_user(messages: list[dict[str, Any]], description: str) -> list[dict[str, Any]]:
    for index, message in enumerate(messages):
        if message["role"] == "user":
            told = {**message, "content": f"{description}\n\n{message['content']}"}
            return [*messages[:index], told, *messages[index + 1 :]]
    return [{"role": "user", "content": description}, *messages]


def _tell_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls and results as contents. Results are the user's, and what the user says next goes with them: turns alternate."""
    told: list[dict[str, Any]] = []
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
            told[-1]["content"] += f"\n{plain['content']}"
        else:
            told.append(plain)
        follows_result = is_result
    return told


def _write_call(index: int, call: Mapping[str, Any]) -> str:
    """A call as the model wrote it: arguments are the client's letter for letter, so that its prefix is found again."""
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise InvalidRequest(f"every call of messages[{index}].tool_calls must have a function with a name")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise InvalidRequest(
            f"the arguments of a call of messages[{index}] must be JSON text, not {show(arguments)}"
        )
    frame = HERMES.frame
    return f"{frame.opening}{name}{frame.middle}{arguments}{frame.closing}"
