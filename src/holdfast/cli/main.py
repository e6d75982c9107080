"""The console script. Commands import torch when they run, so that --help and --version are fast.

A `HoldfastError` is shown as one red line, with exit code 2. Any other exception is a bug and shows
its traceback. Commands and options of other engines are answered with ours (`habits`).
"""

import logging
from typing import Annotated, Any

import typer

from holdfast.cli.commands.bench import bench
from holdfast.cli.commands.certify import certify
from holdfast.cli.commands.chat import chat
from holdfast.cli.commands.continuation import continue_answer
from holdfast.cli.commands.doctor import doctor
from holdfast.cli.commands.eval import evaluate
from holdfast.cli.commands.generate import GenerateCommand, generate
from holdfast.cli.commands.models import models
from holdfast.cli.commands.receipt import receipt
from holdfast.cli.commands.replay import replay
from holdfast.cli.commands.score import score
from holdfast.cli.commands.serve import CONTEXT, serve
from holdfast.cli.commands.train import train
from holdfast.cli.console import show_error
from holdfast.cli.habits import command_hint, option_hint
from holdfast.cli.help_format import App, HelpGroup
from holdfast.errors import ConfigError, HoldfastError
from holdfast.version import __version__


class _Commands(HelpGroup):
    """Turns a `HoldfastError` of any command into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._invoke(ctx)
        except HoldfastError as error:
            show_error(str(error))
            raise typer.Exit(2) from None

    def _invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # click's, or the copy of click inside typer
                _refuse_option(error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            hint = command_hint(args[0], args[1:])
            if hint is not None:
                raise ConfigError(hint)
        return super().resolve_command(ctx, args)


def _refuse_option(error: Any) -> None:
    """Raise `ConfigError` if another engine has this option and the command has ours for it."""
    command = error.ctx.command
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    hint = option_hint(command.name, error.option_name, names)
    if hint is not None:
        raise ConfigError(hint) from None


app = App(
    cls=_Commands,
    name="holdfast",
    help="An LLM inference engine that gives the same answer, bit for bit, every time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(context_settings=CONTEXT)(serve)
app.command(cls=GenerateCommand)(generate)
app.command()(chat)
app.command()(score)
app.command()(certify)
app.command()(replay)
app.command("continue")(continue_answer)
app.command()(models)
app.command()(doctor)
app.add_typer(receipt, name="receipt")
app.add_typer(bench, name="bench")
app.add_typer(train, name="train")
app.add_typer(evaluate, name="eval")


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
    app()
