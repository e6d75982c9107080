"""The form an answer must have, as a group of options. That only one may be given is for `StructuredOutput` to say.

A schema or a grammar may stand in a file. What it looks like decides, never what files there are: JSON begins with a
brace, and a grammar has a colon in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.core.sampling_params import show
from holdfast.core.structured_output import MAX_GRAMMAR_CHARS, StructuredOutput
from holdfast.errors import InvalidRequest


def _option(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Form of the answer (one of)", show_default=False)


@dataclass(frozen=True)
class FormOptions:
    """A group of options (`groups`)."""

    json_schema: Annotated[
        str | None, _option(help="JSON of this schema: a file, or the schema itself if it begins with {.")
    ] = None
    json_object: Annotated[bool, _option("--json-object", help="Any JSON object.")] = False
    regex: Annotated[str | None, _option(help="Text that matches this regular expression.")] = None
    choice: Annotated[
        list[str] | None, _option(help="One of these texts; give the option once for each.")
    ] = None
    lark: Annotated[
        str | None,
        _option(help="Text of this Lark grammar: a file, or the grammar itself if it has a colon in it."),
    ] = None

    def form(self) -> StructuredOutput | None:
        """What was asked for, if anything was; raises `InvalidRequest` for more than one."""
        schema, lark = self.json_schema, self.lark
        if schema is not None and not schema.lstrip().startswith("{"):
            schema = _read(schema, "JSON schema")
        if lark is not None and ":" not in lark:
            lark = _read(lark, "Lark grammar")
        if self == FormOptions():
            return None
        return StructuredOutput(schema, self.json_object, self.regex, self.choice or None, lark)


def _read(path: str, what: str) -> str:
    """A file's text; of one that is too large no more than it takes to see that."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_GRAMMAR_CHARS + 1)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the {what} in {show(path)} is no valid UTF-8: {error}") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"the {what} {show(path)} cannot be read: {why}") from error
