"""Combines tools and structured output: the constraint on a choice, and the parser of its text.

    tool_choice           structured output   constrained to                parsed by
    none, or no tools     any                 that output                   PlainTextParser
    auto                  none                nothing                       AutoToolParser
    auto                  JSON                calls, or that JSON           AutoToolParser
    required, or a name   none                calls                         ForcedToolParser

All other combinations are refused.
"""

from dataclasses import dataclass

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.tools.auto_parser import AutoToolParser
from holdfast.server.tools.deltas import PlainTextParser, ToolCallIds, ToolParser
from holdfast.server.tools.forced_calls import (
    ForcedToolParser,
    calls_or_json_grammar,
    explain_grammar_error,
    forced_grammar,
)
from holdfast.server.tools.formats import ToolFormat
from holdfast.server.tools.tool_config import ToolConfig


@dataclass(frozen=True)
class ToolPlan:
    """How the choices of one request are constrained and parsed."""

    config: ToolConfig
    tool_format: ToolFormat
    structured: StructuredOutput | None
    is_tool_grammar: bool  # whether `structured` was made from tools

    def ids(self, key: bytes, choice: int = 0) -> ToolCallIds:
        """Return the ids of a choice's calls. `key` is the key of `ToolCallIds`."""
        return ToolCallIds(key, choice, short=self.tool_format.short_ids)

    def parser(self, key: bytes, choice: int = 0, *, looks_for_calls: bool = True) -> ToolParser:
        """Return the parser of one choice. looks_for_calls: with "auto", calls are looked for in the text."""
        config, tool_format = self.config, self.tool_format
        ids = self.ids(key, choice)
        if config.is_forced:
            return ForcedToolParser(tool_format, config.callable, ids)
        if not config.callable or not looks_for_calls:
            return PlainTextParser()
        return AutoToolParser(
            tool_format, (tool.name for tool in config.callable), ids, parallel=config.parallel
        )

    def explain(self, message: str) -> str:
        """Return the engine's error message, in terms of the client's tools."""
        return explain_grammar_error(message, self.config) if self.is_tool_grammar else message


def plan_tools(config: ToolConfig, tool_format: ToolFormat, structured: StructuredOutput | None) -> ToolPlan:
    """Return the plan. Raises `InvalidRequest` if tools and structured output cannot be combined."""
    if config.callable and structured is not None and structured.kind not in ("json_schema", "json_object"):
        raise InvalidRequest(
            f"tools cannot be combined with structured output of kind {structured.kind!r}, only with JSON; "
            "set tool_choice to none"
        )
    if config.is_forced:  # the answer has no text that a JSON format could apply to
        return ToolPlan(config, tool_format, forced_grammar(config, tool_format), is_tool_grammar=True)
    if config.callable and structured is not None:
        return ToolPlan(
            config, tool_format, calls_or_json_grammar(config, tool_format, structured), is_tool_grammar=True
        )
    return ToolPlan(config, tool_format, structured, is_tool_grammar=False)
