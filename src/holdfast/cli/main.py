"""The console script. A command is imported when it is named, torch when it runs.

A `HoldfastError` is shown as one red line, with exit code 2. Any other exception is a bug and shows
its traceback. Commands and options of other engines are answered with ours (`habits`).
"""

import gc
import logging
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command, get_group

from holdfast.cli.console import show_error
from holdfast.cli.help_format import App, HelpGroup
from holdfast.cli.options.groups import say_where
from holdfast.engine.other_engines import command_hint, option_hint
from holdfast.errors import ConfigError, HoldfastError
from holdfast.version import __version__

# Each command: its module in `holdfast.cli.commands`, or another one, and the function or the App in it.
_COMMANDS = {
    "serve": ("serve", "serve"),
    "generate": ("generate", "generate"),
    "chat": ("chat", "chat"),
    "score": ("score", "score"),
    "run-batch": ("run_batch", "run_batch"),
    "certify": ("certify", "certify"),
    "replay": ("replay", "replay"),
    "continue": ("replay", "continue_answer"),
    "models": ("models", "models"),
    "doctor": ("doctor", "doctor"),
    "receipt": ("receipt", "receipt"),
    "bench": ("bench", "bench"),
    "train": ("holdfast_thinking.cli.train", "train"),
    "eval": ("holdfast_thinking.cli.eval", "evaluate"),
}


class _Commands(HelpGroup):
    """Import the command that is named. Turn a `HoldfastError` into one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _import_command(cmd_name)
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, typer.BadParameter):
                say_where(error)
            is_option = type(error).__name__ == "NoSuchOption"  # click's, or the copy of click inside typer
            said = _hint(error) if is_option else str(error) if isinstance(error, HoldfastError) else None
            if said is None:
                raise
            show_error(said)
            raise typer.Exit(2) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            hint = command_hint(args[0], args[1:])
            if hint is not None:
                raise ConfigError(hint)
            for name in _COMMANDS:  # the error names the nearest of all commands
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def _import_command(name: str) -> Any:
    """Return the group of an App, or a command made of a function and its module's COMMAND_SETTINGS."""
    module, attribute = _COMMANDS[name]
    imported = import_module(module if "." in module else f"holdfast.cli.commands.{module}")
    found = getattr(imported, attribute)
    if not isinstance(found, typer.Typer):
        single = App(add_completion=False)
        single.command(name, **getattr(imported, "COMMAND_SETTINGS", {}))(found)
        return get_command(single)
    group = get_group(found)
    group.name = name
    return group


def _hint(error: Any) -> str | None:
    """Return our words for an option of another engine."""
    command = error.ctx.command
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return option_hint(command.name, error.option_name, names)


app = App(
    cls=_Commands,
    name="holdfast",
    help="An LLM inference engine that gives the same answer, bit for bit, every time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """An LLM inference engine that gives the same answer, bit for bit, every time."""
    logging.basicConfig(format="holdfast: %(message)s", level=logging.WARNING)


def main() -> None:
    try:
        app()
    finally:
        gc.freeze()  # the interpreter would visit every object of torch once more before it ends
