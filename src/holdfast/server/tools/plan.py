"""What tools and a form together ask of one answer: the form it is held to, and the reader of its text.

    tool_choice           form asked for      held to                       read by
    none, or no tools     any                 that form                     PlainReader
    auto                  none                nothing                       AutoReader
    auto                  JSON                calls, or JSON of that form   AutoReader
    required, or a name   none                calls                         ForcedReader

Whatever is not in the table is refused.
"""

from dataclasses import dataclass

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.tools.auto_calls import AutoReader
from holdfast.server.tools.calls import AnswerReader, CallIds, PlainReader
from holdfast.server.tools.forced_calls import ForcedReader, explain_refusal, write_either, write_forced
from holdfast.server.tools.formats import ToolFormat
from holdfast.server.tools.offer import ToolUse


@dataclass(frozen=True)
class ToolPlan:
    """How one request's answers are held to a form and read."""

    use: ToolUse
    tool_format: ToolFormat
    form: StructuredOutput | None
    has_tool_form: bool  # whether the form was made here, of tools

    def reader(self, key: bytes, choice: int = 0) -> AnswerReader:
        """The reader of one choice. `key` is what call ids are made of: the prompt's tokens and the seed."""
        use, tool_format = self.use, self.tool_format
        ids = CallIds(key, choice, short=tool_format.short_ids)
        if use.is_forced:
            return ForcedReader(tool_format, use.callable, ids)
        if not use.callable:
            return PlainReader()
        return AutoReader(tool_format, (tool.name for tool in use.callable), ids, parallel=use.parallel)

    def explain(self, message: str) -> str:
        """Why the engine refused the request, in the client's own words."""
        return explain_refusal(message, self.use) if self.has_tool_form else message


def plan_tools(use: ToolUse, tool_format: ToolFormat, form: StructuredOutput | None) -> ToolPlan:
    """The plan, or `InvalidRequest` where tools and form cannot both be had."""
    if use.is_forced:
        if form is not None:
            raise InvalidRequest(
                "an answer that must call a tool cannot have another form; leave out the form, or let tool_choice be auto"
            )
        return ToolPlan(use, tool_format, write_forced(use, tool_format), has_tool_form=True)
    if use.callable and form is not None:
        if form.kind not in ("json_schema", "json_object"):
            raise InvalidRequest(
                f"tools cannot be offered beside the form {form.kind!r}, only beside JSON; let tool_choice be none"
            )
        return ToolPlan(use, tool_format, write_either(use, tool_format, form), has_tool_form=True)
    return ToolPlan(use, tool_format, form, has_tool_form=False)
