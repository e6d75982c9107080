"""Forced tool calls (`tool_choice` "required" or a name): the grammar that allows only calls, and
the parser of its text.

All text around the arguments is fixed (`CallFrame`), so the parser knows every character that
follows and can stream arguments as they are generated. Each tool's schema is a root of its own in
the grammar, so that `#/$defs/...` and `#` keep their meaning. A truncated choice ends in the middle
of a call.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from holdfast.core.structured_output import StructuredOutput
from holdfast.server.tools.deltas import ChoiceDelta, ToolCallDelta, ToolCallIds
from holdfast.server.tools.formats import ToolFormat
from holdfast.server.tools.json_scanner import JsonScanner
from holdfast.server.tools.tool_config import Tool, ToolConfig
from holdfast.structured.spec import json_grammar

MAX_FORCED_CALLS = 32  # a weak model may never stop calling

_RULES_BEFORE_TOOLS = 2
_GRAMMAR_ERROR = re.compile(
    r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*?)(?: \d+ \| .*)?", re.DOTALL
)


def forced_grammar(config: ToolConfig, tool_format: ToolFormat) -> StructuredOutput:
    """Return the grammar of one call, or of several if the request and the format allow it."""
    start = _start_rule(config, tool_format)
    return _output(_write_grammar(start, config.callable, tool_format), tool_format)


def calls_or_json_grammar(
    config: ToolConfig, tool_format: ToolFormat, output: StructuredOutput
) -> StructuredOutput:
    """Return the grammar of calls, or of JSON of the requested structured output.

    `AutoToolParser` tells which of them was generated.
    """
    head = quote(tool_format.answer_head, tool_format.special)
    start = f"{head} answer | {_start_rule(config, tool_format)}"
    rules = _write_grammar(start, config.callable, tool_format)
    return _output(f"{rules}\nanswer: {json_in_lark(output)}", tool_format)


def json_in_lark(output: StructuredOutput) -> str:
    """Return the rule of a JSON schema or object."""
    return _json(json.loads(output.texts[0]) if output.kind == "json_schema" else {"type": "object"})


def explain_grammar_error(message: str, config: ToolConfig) -> str:
    """Return the compiler's error for a grammar of this module, in terms of the client's tools.

    Other errors, for example of a prompt that is too long, are unchanged.
    """
    cause = message.partition("cannot be used: ")[2]
    if not cause:
        return message
    line, reason = grammar_error(cause)
    if line is None:
        return f"the tools' parameters cannot be compiled to a grammar: {reason}"
    index = (line - 1 - _RULES_BEFORE_TOOLS) // 2
    if 0 <= index < len(config.callable):
        return f"the parameters of tool {config.callable[index].name!r} cannot be compiled to a grammar: {reason}"
    return f"the structured output cannot be compiled to a grammar: {reason}"


def grammar_error(cause: str) -> tuple[int | None, str]:
    """Return the line and the reason in the compiler's error for a Lark grammar."""
    found = _GRAMMAR_ERROR.fullmatch(cause)
    return (None, cause) if found is None else (int(found[1]), found[2])


def _start_rule(config: ToolConfig, tool_format: ToolFormat) -> str:
    frame = tool_format.frame
    only_one = config.choice == "named" or not config.parallel or not tool_format.many
    more = "" if only_one else f"({quote(frame.between)} call){{0,{MAX_FORCED_CALLS - 1}}}"
    return f"{quote(frame.before)} call {more} {quote(frame.after)}"


def _output(lark: str, tool_format: ToolFormat) -> StructuredOutput:
    return StructuredOutput(lark=lark, special_tokens=bool(tool_format.special))


def _write_grammar(start: str, tools: Sequence[Tool], tool_format: ToolFormat) -> str:
    """Write start in line 1, call in line 2, then two lines for each tool: `explain_grammar_error` relies on this."""
    frame, special = tool_format.frame, tool_format.special
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    lines = [f"start: {start}", f"call: {names}"]
    for index, tool in enumerate(tools):
        head = quote(frame.opening + tool.name + frame.middle, special)
        lines.append(f"call_{index}: {head} arguments_{index} {quote(frame.closing)}")
        lines.append(f"arguments_{index}: {_json(tool.schema)}")
    return "\n".join(lines)


def quote(text: str, special: Sequence[str] = ()) -> str:
    """Write a text in Lark. These special tokens in it are tokens."""
    parts = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
    return " ".join(one if one in special else json.dumps(one) for one in parts if one)  # as JSON escapes


def _json(schema: Any) -> str:
    return f"%json {json.dumps(json_grammar({'enum': []} if schema is False else schema))}"


class ForcedToolParser:
    """Parses text that `forced_grammar` allows, or the beginning of such text."""

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool], ids: ToolCallIds) -> None:
        self._frame = frame = tool_format.frame
        self._heads = {frame.opening + tool.name + frame.middle: tool.name for tool in tools}
        self._ids = ids
        self._num_calls = 0
        # The texts that may follow, and the tool each one calls. None is a prefix of another.
        self._expected: dict[str, str | None] = {
            frame.before + head: name for head, name in self._heads.items()
        }
        self._marker = ""  # the part of an expected text that has arrived
        self._scanner: JsonScanner | None = None  # of the current arguments

    def feed(self, text: str) -> list[ChoiceDelta]:
        deltas: list[ChoiceDelta] = []
        at = 0
        while at < len(text):
            if self._scanner is None:
                at = self._parse_frame(text, at, deltas)
            else:
                at = self._parse_arguments(self._scanner, text, at, deltas)
        return deltas

    def finish(self) -> list[ChoiceDelta]:
        return []

    def _parse_frame(self, text: str, at: int, deltas: list[ChoiceDelta]) -> int:
        self._marker += text[at]
        if self._marker in self._expected:
            name = self._expected[self._marker]
            self._marker, self._expected = "", {}
            if name is not None:
                self._scanner = JsonScanner(max_depth=None)
                deltas.append(ToolCallDelta(self._num_calls, "", self._ids.make(self._num_calls, name), name))
                self._num_calls += 1
        else:
            assert any(one.startswith(self._marker) for one in self._expected), (
                "the grammar does not allow this text"
            )
        return at + 1

    def _parse_arguments(self, scanner: JsonScanner, text: str, at: int, deltas: list[ChoiceDelta]) -> int:
        end = scanner.feed(text, at)
        assert not scanner.failed, "the grammar allows only JSON arguments"
        deltas.append(ToolCallDelta(self._num_calls - 1, text[at:end]))
        if scanner.ended:
            self._scanner, frame = None, self._frame
            more = frame.closing + frame.between
            self._expected = {more + head: name for head, name in self._heads.items()}
            if frame.after:
                self._expected[frame.closing + frame.after] = None
        return end
