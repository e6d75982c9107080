"""Help that can be read in 80 columns: one section for each group of options.

Typer's own tables give names, types and texts a column each, so that in 80 columns names are cut
off and texts have 18 characters a line. Here click's formatter writes the text beside or below the
name, and wraps paragraphs to the terminal.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

_WIDTH = 100
Function = TypeVar("Function", bound=Callable[..., Any])


class HelpCommand(TyperCommand):
    """A command with its options in sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class HelpGroup(TyperGroup):
    """A group of commands, each with the first paragraph of its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        found = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        rows = [
            (one.name or "", " ".join((one.help or "").partition("\n\n")[0].split()))
            for one in found
            if one is not None and not one.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class App(typer.Typer):
    """A `Typer` whose commands show their help in this form."""

    def __init__(self, *, cls: type[TyperGroup] = HelpGroup, **settings: Any) -> None:
        context = {"max_content_width": _WIDTH, **settings.pop("context_settings", {})}
        super().__init__(cls=cls, rich_markup_mode=None, context_settings=context, **settings)

    def command(  # type: ignore[override]  # the other settings are passed on
        self, name: str | None = None, *, cls: type[TyperCommand] = HelpCommand, **settings: Any
    ) -> Callable[[Function], Function]:
        return super().command(name, cls=cls, **settings)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments first, then the options of each panel, in the order in which they are declared."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            is_argument = param.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(param, "rich_help_panel", None) or "Options"
            sections.setdefault(panel, []).append(record)
    for title in sorted(sections, key=_order):
        with formatter.section(title):
            formatter.write_dl(sections[title])


def _order(title: str) -> int:
    return {"Arguments": 0, "Options": 1}.get(title, 2)
