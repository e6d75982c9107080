"""`holdfast eval`: options for `holdfast_thinking.eval`."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.console import note
from holdfast.cli.help_format import App
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast_thinking.data.names import require_tasks

if TYPE_CHECKING:
    from holdfast.engine.llm import LLM

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
    baseline_count: Annotated[int, typer.Option(min=1, help="The same, for baselines.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts.")] = 1,
    long_texts: Annotated[
        bool | None,
        typer.Option(
            "--long-texts/--short-texts",
            help="Filler sentences between the events, or none. Default: as in the training of the first model.",
            show_default=False,
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic/--no-deterministic", help="Send deterministic or ordinary requests."),
    ] = True,
    accuracy: Annotated[
        bool,
        typer.Option(
            "--accuracy/--no-accuracy", help="Measure accuracy by length, or only what other options ask for."
        ),
    ] = True,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="Also measure without states, and with the last thought replaced."),
    ] = False,
    latency: Annotated[
        bool,
        typer.Option(
            "--latency",
            help="Time single requests, all models in turns: 40 events of parity, or the first task.",
        ),
    ] = False,
    latency_task: Annotated[
        str | None, typer.Option(help="The task to time, one of --task, instead.")
    ] = None,
    latency_count: Annotated[int, typer.Option(min=1, help="Number of texts timed.")] = 25,
    general: Annotated[
        bool,
        typer.Option(
            "--general", help="Count thoughts on 200 general prompts; compare an adapter with its backbone."
        ),
    ] = False,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Time prefill with predicted thoughts against chunk by chunk.")
    ] = False,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost",
            help="Time tokens with thinking, without thinking, and of a model folder without thinking.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for eval-thinking.json, updated during the run, and plots.")
    ] = None,
    engine: EngineConfig = _ENGINE,
) -> None:
    """Measure accuracy by length with the serving engine, and the effect and cost of thoughts."""
    if not (accuracy or latency or rounds or cost or general):
        raise ConfigError(
            "with --no-accuracy there is nothing to measure; add --latency, --rounds, --cost or --general"
        )
    folders = [_model_folder(each, is_baseline=False) for each in models]
    folders += [_model_folder(each, is_baseline=True) for each in baseline or ()]
    numbers = _numbers(events)
    require_tasks(task or ())
    for _, folder, _ in folders:
        o.open_model(replace(engine, model=str(folder)))
    from holdfast_thinking.eval.run import EvalSettings, ModelFolder, run_eval
    from holdfast_thinking.eval.table import show_eval

    settings = EvalSettings(
        tasks=tuple(task or ()),
        events=numbers,
        count=count,
        baseline_count=baseline_count,
        seed=seed,
        long_texts=long_texts,
        deterministic=deterministic,
        ablate=ablate,
        latency=latency,
        latency_count=latency_count,
        latency_task=latency_task,
        general=general,
        rounds=rounds,
        cost=cost,
        accuracy=accuracy,
    )

    def open_llm(folder: Path) -> "LLM":
        return o.open_llm(replace(engine, model=str(folder)))

    report = run_eval([ModelFolder(*each) for each in folders], settings, open_llm, out, note)
    show_eval(report)
    if out is not None and find_spec("matplotlib") is not None:
        from holdfast_thinking.eval.plot import plot_eval

        for path in plot_eval(report, out):
            note(f"wrote {path}")


def _model_folder(text: str, *, is_baseline: bool) -> tuple[str, Path, bool]:
    """The arguments of a `ModelFolder`, which only the evaluation imports."""
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
    return name if is_named else folder.resolve().name, folder, is_baseline


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--events is {text!r}; expected numbers such as 10,20,40")
    return tuple(sorted({int(part) for part in parts}))
