"""The console script. Commands import torch when they run, so that --help and --version are fast.

A `HoldfastError` is shown as one red line, with exit code 2. Any other exception is a bug and shows
its traceback.
"""

import logging
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli.commands.bench import bench
from holdfast.cli.commands.certify import certify
from holdfast.cli.commands.chat import chat
from holdfast.cli.commands.doctor import doctor
from holdfast.cli.commands.eval import evaluate
from holdfast.cli.commands.generate import generate
from holdfast.cli.commands.receipt import receipt
from holdfast.cli.commands.replay import replay
from holdfast.cli.commands.score import score
from holdfast.cli.commands.serve import CONTEXT, serve
from holdfast.cli.commands.train import train
from holdfast.cli.console import show_error
from holdfast.errors import HoldfastError
from holdfast.version import __version__


class _Commands(TyperGroup):
    """Turns a `HoldfastError` of any command into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            show_error(str(error))
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    name="holdfast",
    help="An LLM inference engine that gives the same answer, bit for bit, every time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(context_settings=CONTEXT)(serve)
app.command()(generate)
app.command()(chat)
app.command()(score)
app.command()(certify)
app.command()(replay)
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
