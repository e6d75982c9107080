"""What tools and a form together ask of one answer: the form it is held to, and the reader of its text.

    tool_choice           form asked for      held to                       read by
    none, or no tools     any                 that form                     PlainTextParser
    auto                  none                nothing                       AutoToolParser
    auto                  JSON                calls, or JSON of that form   AutoToolParser
    required, or a name   none                calls                         ForcedToolParser

Whatever is not in the table is refused.
"""

from dataclasses import dataclass

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.tools.auto_parser import AutoToolParser
from holdfast.server.tools.deltas import PlainTextParser, ToolCallIds, ToolParser
from holdfast.server.tools.forced_calls import (
    ForcedToolParser,
    calls_or_json_grammar,
    explain_refusal,
    forced_grammar,
)
from holdfast.server.tools.formats import ToolFormat
from holdfast.server.tools.tool_config import ToolConfig


@dataclass(frozen=True)
class ToolPlan:
    """How one request's answers are held to a form and read."""

    use: ToolConfig
    tool_format: ToolFormat
    form: StructuredOutput | None
    has_tool_form: bool  # whether the form was made here, of tools

    def reader(self, key: bytes, choice: int = 0) -> ToolParser:
        """The reader of one choice. `key` is what call ids are made of: the prompt's tokens and the seed."""
        use, tool_format = self.use, self.tool_format
        ids = ToolCallIds(key, choice, short=tool_format.short_ids)
        if use.is_forced:
            return ForcedToolParser(tool_format, use.callable, ids)
        if not use.callable:
            return PlainTextParser()
        return AutoToolParser(tool_format, (tool.name for tool in use.callable), ids, parallel=use.parallel)

    def explain(self, message: str) -> str:
        """Why the engine refused the request, in the client's own words."""
        return explain_refusal(message, self.use) if self.has_tool_form else message


def plan_tools(use: ToolConfig, tool_format: ToolFormat, form: StructuredOutput | None) -> ToolPlan:
    """The plan, or `InvalidRequest` where tools and form cannot both be had."""
    if use.is_forced:
        if form is not None:
            raise InvalidRequest(
                "an answer that must call a tool cannot have another form; leave out the form, or let tool_choice be auto"
            )
        return ToolPlan(use, tool_format, forced_grammar(use, tool_format), has_tool_form=True)
    if use.callable and form is not None:
        if form.kind not in ("json_schema", "json_object"):
            raise InvalidRequest(
                f"tools cannot be offered beside the form {form.kind!r}, only beside JSON; let tool_choice be none"
            )
        return ToolPlan(use, tool_format, calls_or_json_grammar(use, tool_format, form), has_tool_form=True)
    return ToolPlan(use, tool_format, form, has_tool_form=False)
