"""Calls a client insists on: the grammar that leaves the model nothing else to write, and the reader of what it wrote.

Everything around the arguments is fixed (`CallFrame`), so the reader knows what comes next to the letter and can stream
arguments as they are written. Each tool's schema is a root of its own in the grammar: `#/$defs/...` and `#` in it mean
what they meant when the client wrote them. An answer that was cut off ends in the middle of a call.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from holdfast.core.structured_output import StructuredOutput
from holdfast.server.tools.deltas import ChoiceDelta, ToolCallDelta, ToolCallIds
from holdfast.server.tools.formats import CallFrame, ToolFormat
from holdfast.server.tools.json_scanner import JsonScanner
from holdfast.server.tools.tool_config import Tool, ToolConfig
from holdfast.structured.spec import JSON_OPTIONS

MAX_FORCED_CALLS = 32  # a weak model may never stop by itself

_RULES_BEFORE_TOOLS = 2
_NOTED = frozenset(
    ("type", "properties", "required", "title", "description", "$defs", "definitions", "$schema", "examples")
)
_PLACE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*?)(?: \d+ \| .*)?", re.DOTALL)


def forced_grammar(use: ToolConfig, tool_format: ToolFormat) -> StructuredOutput:
    """One call of a tool that may be called; more if the request and the format allow it."""
    start = _several(use, tool_format)
    return StructuredOutput(lark=_write_grammar(start, use.callable, tool_format.frame))


def calls_or_json_grammar(
    use: ToolConfig, tool_format: ToolFormat, answer: StructuredOutput
) -> StructuredOutput:
    """Calls, or an answer of the form asked for, which is JSON. What it was is for `AutoReader` to see."""
    schema = json.loads(answer.texts[0]) if answer.kind == "json_schema" else {"type": "object"}
    rules = _write_grammar(f"answer | {_several(use, tool_format)}", use.callable, tool_format.frame)
    return StructuredOutput(lark=f"{rules}\nanswer: {_json(schema)}")


def explain_refusal(message: str, use: ToolConfig) -> str:
    """What is wrong with a grammar made here, in the words of the tools it was made of."""
    cause = message.partition("cannot be used: ")[2] or message
    found = _PLACE.fullmatch(cause)
    if found is None:
        return f"the parameters of the tools cannot be forced: {cause}"
    index = (int(found[1]) - 1 - _RULES_BEFORE_TOOLS) // 2
    if 0 <= index < len(use.callable):
        return f"the parameters of tool {use.callable[index].name!r} cannot be forced: {found[2]}"
    return f"the form of the answer cannot be used: {found[2]}"


def _several(use: ToolConfig, tool_format: ToolFormat) -> str:
    frame = tool_format.frame
    only_one = use.choice == "named" or not use.parallel or not tool_format.many
    more = "" if only_one else f"({_quote(frame.between)} call){{0,{MAX_FORCED_CALLS - 1}}}"
    return f"{_quote(frame.before)} call {more} {_quote(frame.behind)}"


def _write_grammar(start: str, tools: Sequence[Tool], frame: CallFrame) -> str:
    """Line 1: start; line 2: call; then two lines a tool."""
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    lines = [f"start: {start}", f"call: {names}"]
    for index, tool in enumerate(tools):
        head = _quote(frame.opening + tool.name + frame.middle)
        lines.append(f"call_{index}: {head} arguments_{index} {_quote(frame.closing)}")
        lines.append(f"arguments_{index}: {_json(_close(tool.schema))}")
    return "\n".join(lines)


def _quote(text: str) -> str:
    return json.dumps(text) if text else ""  # JSON's escapes are Lark's


def _json(schema: Any) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS})}"


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    """A function has the parameters it lists and no others, unless its schema says more than which those are."""
    properties, required = schema.get("properties"), schema.get("required", ())
    if properties is None or not _NOTED.issuperset(schema) or not set(required) <= set(properties):
        return schema
    return {**schema, "additionalProperties": False}


class ForcedToolParser:
    """Reads one answer that the grammar of `forced_grammar` allowed, or the beginning of one."""

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool], ids: ToolCallIds) -> None:
        self._frame = frame = tool_format.frame
        self._heads = {frame.opening + tool.name + frame.middle: tool.name for tool in tools}
        self._ids = ids
        self._num_calls = 0
        # What may come, and the tool that is called by it; none of it begins like another.
        self._expected: dict[str, str | None] = {
            frame.before + head: name for head, name in self._heads.items()
        }
        self._marker = ""  # as much of what is expected as has come
        self._scanner: JsonScanner | None = None  # of the arguments that are being written

    def feed(self, text: str) -> list[ChoiceDelta]:
        deltas: list[ChoiceDelta] = []
        at = 0
        while at < len(text):
            if self._scanner is None:
                at = self._read_frame(text, at, deltas)
            else:
                at = self._read_arguments(self._scanner, text, at, deltas)
        return deltas

    def finish(self) -> list[ChoiceDelta]:
        return []

    def _read_frame(self, text: str, at: int, deltas: list[ChoiceDelta]) -> int:
        self._marker += text[at]
        if self._marker in self._expected:
            name = self._expected[self._marker]
            self._marker, self._expected = "", {}
            if name is not None:
                self._scanner = JsonScanner(max_depth=None)
                deltas.append(ToolCallDelta(self._num_calls, "", self._ids.make(self._num_calls, name), name))
                self._num_calls += 1
        else:
            assert any(one.startswith(self._marker) for one in self._expected), "no forced answer goes on so"
        return at + 1

    def _read_arguments(self, scanner: JsonScanner, text: str, at: int, deltas: list[ChoiceDelta]) -> int:
        end = scanner.feed(text, at)
        assert not scanner.broken, "forced arguments are no JSON"
        deltas.append(ToolCallDelta(self._num_calls - 1, text[at:end]))
        if scanner.ended:
            self._scanner, frame = None, self._frame
            more = frame.closing + frame.between
            self._expected = {more + head: name for head, name in self._heads.items()}
            if frame.behind:
                self._expected[frame.closing + frame.behind] = None
        return end
