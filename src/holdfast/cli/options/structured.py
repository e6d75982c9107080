"""Structured output as a group of options. `StructuredOutput` refuses more than one of them.

A schema or a grammar may be in a file. Which of the two a value is depends on the value alone,
never on the files that exist: a JSON schema begins with a brace, and a grammar contains a colon.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.core.sampling_params import show
from holdfast.core.structured_output import MAX_GRAMMAR_CHARS, StructuredOutput
from holdfast.errors import InvalidRequest


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(
        *names, help=help, rich_help_panel="Structured output (one of)", show_default=False, metavar=metavar
    )


@dataclass(frozen=True)
class StructuredOptions:
    """A group of options (`groups`)."""

    json_schema: Annotated[
        str | None, _option(help="JSON of this schema: a file, or the schema itself if it begins with {.")
    ] = None
    json_object: Annotated[bool, _option("--json-object", help="Any JSON object.")] = False
    regex: Annotated[str | None, _option(help="Text that matches this regular expression.")] = None
    choice: Annotated[
        list[str] | None, _option(help="One of these texts; repeat the option for each.", metavar="TEXT")
    ] = None
    lark: Annotated[
        str | None,
        _option(help="Text of this Lark grammar: a file, or the grammar itself if it contains a colon."),
    ] = None

    def structured_output(self) -> StructuredOutput | None:
        """Return the constraint, or None. Raise `InvalidRequest` for more than one."""
        schema, lark = self.json_schema, self.lark
        if schema is not None and not schema.lstrip().startswith("{"):
            schema = _read(schema, "JSON schema")
        if lark is not None and ":" not in lark:
            lark = _read(lark, "Lark grammar")
        if self == StructuredOptions():
            return None
        return StructuredOutput(schema, self.json_object, self.regex, self.choice or None, lark)


def _read(path: str, what: str) -> str:
    """Return the text of a file, at most one character more than is allowed."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_GRAMMAR_CHARS + 1)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the {what} in {show(path)} is no valid UTF-8: {error}") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"the {what} {show(path)} cannot be read: {why}") from error
