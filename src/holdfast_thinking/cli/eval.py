"""`holdfast eval`: options for `holdfast_thinking.eval`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.console import note
from holdfast.cli.help_format import App
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast_thinking.settings import require_tasks

if TYPE_CHECKING:
    from holdfast.engine.llm.llm import LLM

evaluate = App(help="Evaluate trained models.", no_args_is_help=True)
_ENGINE = replace(o.ENGINE, prefix_cache=False)


@evaluate.callback()
def start() -> None:
    """Evaluate trained models."""


@evaluate.command()
@grouped(without=("prefix_cache", "load_format", "chat_template", "receipt_key"))
def thinking(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Folders written by holdfast train, each FOLDER or NAME=FOLDER.", metavar="MODEL..."
        ),
    ],
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER of a model to compare with; may be repeated."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A task of holdfast train thinking, with the test file of a file's; may be repeated. Default: "
            "the tasks the first model was trained on, without files."
        ),
    ] = None,
    events: Annotated[
        str, typer.Option(help="Numbers of events in the eval sets, separated by commas.")
    ] = "10,20,40,60,80,100",
    count: Annotated[int, typer.Option(min=1, help="Number of texts for each number of events.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts.")] = 1,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="Also measure without states."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for eval-thinking.json, updated during the run.")
    ] = None,
    engine: EngineConfig = _ENGINE,
) -> None:
    """Measure accuracy of models by length with the serving engine, and the effect of thoughts."""
    folders = [_model_folder(each) for each in (*models, *(baseline or ()))]
    numbers = _numbers(events)
    require_tasks(task or ())
    for _, folder in folders:
        o.open_model(replace(engine, model=str(folder)))
    from holdfast_thinking.eval.report import show_eval
    from holdfast_thinking.eval.run import EvalSettings, run_eval

    def open_llm(folder: Path) -> "LLM":
        return o.open_llm(replace(engine, model=str(folder)))

    settings = EvalSettings(tuple(task or ()), numbers, count, seed, ablate)
    show_eval(run_eval(folders, settings, open_llm, out, note))


def _model_folder(text: str) -> tuple[str, Path]:
    from holdfast.models.locate import COIN, COIN_ADAPTER, locate

    name, is_named, path = text.rpartition("=")
    if path in (COIN, COIN_ADAPTER):
        found = locate(path)
        folder = found.adapter or found.path
    else:
        folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"there is no model folder {folder}; expected FOLDER or NAME=FOLDER, {COIN} or {COIN_ADAPTER}"
        )
    return name if is_named else folder.resolve().name, folder


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--events is {text!r}; expected numbers such as 10,20,40")
    return tuple(sorted({int(part) for part in parts}))
