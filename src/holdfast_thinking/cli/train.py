"""`holdfast train`: options, progress and interrupts for `holdfast_thinking.run`."""

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.console import note, require_packages, stderr
from holdfast.cli.help_format import App
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast_thinking.settings import GENERAL_FILE, PRESETS, TrainingSettings, read_changes

if TYPE_CHECKING:
    from holdfast_thinking.run.loop import StepMetrics, TrainingRun

train = App(help="Train models that think while they read.", no_args_is_help=True)
_LOG_SECONDS = 60  # between log lines without a terminal
_INTERRUPTED = 130  # the exit code of a shell
_NUM_GENERAL, _GENERAL_TASKS = (
    400,
    ("outside", "variable-talk", "stories", "coin-messages"),
)  # of `GENERAL_FILE`


@train.callback()
def start() -> None:
    """Train models that think while they read."""


@train.command()
@grouped()
def thinking(
    out: Annotated[Path, typer.Option(help="Folder for the model, its curves and the train state.")],
    changes: Any = TrainingSettings,
    preset: Annotated[
        str | None,
        typer.Option(
            help="coin, smollm2-coin: the built-in models. backbone: a pretrained model, texts in chat form. short: "
            "parity of four events, one minute on a laptop."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Any other field of TrainingSettings: max_events=4, size=tiny, chat=true, weights.thought=2. May be "
            "repeated.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again even if --out has a run.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    num_threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None,
) -> None:
    """Train a thinking model, or a baseline, and write it as a model folder."""
    require_packages("torch", extra="torch", what="training")
    if resume and (changes or preset or set_):
        raise ConfigError(
            "--resume continues with the settings of the run in --out; other options cannot be given"
        )
    settings = None if resume else _settings(preset, changes, set_ or [], out)
    import torch

    from holdfast.numerics.settings import apply_numeric_settings
    from holdfast.worker.device import choose_device
    from holdfast_thinking.run.loop import resume_run, start_run

    if num_threads is not None:
        apply_numeric_settings(num_threads)
    where = torch.device(str(choose_device(EngineConfig(device=device).device)))
    if settings is None:
        run = resume_run(out, where, num_threads)
    else:
        _require_place(out, overwrite)
        if f"chat:{out / GENERAL_FILE}" in settings.tasks and not (out / GENERAL_FILE).exists():
            _write_general(settings, out / GENERAL_FILE, where.type)
        run = start_run(settings, where)
    _train(run, out, num_threads)


def _settings(preset: str | None, changes: dict[str, Any], more: list[str], out: Path) -> TrainingSettings:
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"--preset is {preset!r}; expected one of {', '.join(PRESETS)}")
    base = TrainingSettings() if preset is None else PRESETS[preset]
    if "tasks" in changes:
        named = [_named_task(each) for each in changes["tasks"]]
        changes["tasks"] = tuple(name for name, _ in named)
        changes["shares"] = tuple(share for _, share in named) if any(share > 1 for _, share in named) else ()
    else:
        files = {f"chat:{GENERAL_FILE}": f"chat:{out / GENERAL_FILE}"}
        changes["tasks"] = tuple(files.get(name, name) for name in base.tasks)
    if "steps" in changes and "minutes" in changes:
        changes["most_steps"] = changes["steps"]
    if "window" in changes or "backbone" in changes:
        changes["window"] = changes.get("window") or None
    if "adapter" in changes:
        changes["thinks_answer"] = changes["adapter"]
    return replace(base, **(changes | read_changes(more, base.weights)))


def _named_task(text: str) -> tuple[str, int]:
    name, is_shared, share = text.rpartition("=")
    return (name, int(share)) if is_shared and share.isdecimal() else (text, 1)


def _write_general(settings: TrainingSettings, path: Path, device: str) -> None:
    """Write the backbone's own answers, with which an adapter learns where to think nothing."""
    from holdfast.engine.llm.llm import LLM
    from holdfast.models.locate import locate
    from holdfast_thinking.data.samples import sample_prompts, write_samples

    assert settings.backbone is not None
    backbone = locate(settings.backbone).path  # of an adapter what it was trained for
    note(f"the answers of {backbone.name} to general prompts: {path}")
    prompts = sample_prompts(_NUM_GENERAL, settings.seed, _GENERAL_TASKS)
    llm = LLM(str(backbone), device=device, max_model_len=settings.context)
    write_samples(llm, path, prompts, max_tokens=48, seed=settings.seed)


@train.command()
@grouped(without=("load_format", "chat_template", "receipt_key"))
def samples(
    out: Annotated[Path, typer.Option(help="The file to write: JSON lines with prompt and answer.")],
    model: o.ModelArgument = None,
    count: Annotated[int, typer.Option(min=1, help="Number of general prompts.")] = 1500,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an answer.")] = 48,
    seed: Annotated[int, typer.Option(min=0, help="Seed of prompts and answers.")] = 0,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Add as many prompts of this task, about which nothing is to be thought, or stories (of things in "
            "boxes, people in rooms, towns). May be repeated."
        ),
    ] = None,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Write a model's own answers to general prompts, for the task chat:FILE."""
    from holdfast_thinking.data.samples import sample_prompts, write_samples

    prompts = sample_prompts(count, seed, task or ())
    llm = o.open_llm(replace(engine, model=model))
    written = write_samples(llm, out, prompts, max_tokens, seed)
    note(f"{written} answers written: {out}")


def _require_place(out: Path, overwrite: bool) -> None:
    from holdfast_thinking.run.export import STATE_FILE

    if (out / STATE_FILE).exists() and not overwrite:
        raise ConfigError(f"{out} has a run; --resume continues it, --overwrite starts again")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(f"{out} cannot be written to: {error.strerror or error}") from error


def _train(run: "TrainingRun", out: Path, num_threads: int | None) -> None:
    import torch
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from holdfast_thinking.run.estimate import estimate
    from holdfast_thinking.run.loop import train as go_on
    from holdfast_thinking.run.loop import write_model

    count = sum(each.numel() for each in run.model.parameters())
    note(f"{count / 1e6:.1f} million parameters, {', '.join(run.settings.tasks)}, on {run.device}")
    note(estimate(run, torch.get_num_threads() if run.step else num_threads))
    right = "right, chain included" if run.settings.form == "cot" else "right"
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = stderr()
    last = (run.step, time.monotonic())  # of the log
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("training", total=run.settings.steps, completed=run.step)

        def report(moment: "StepMetrics") -> None:
            nonlocal last
            loss = f"loss {moment.loss:.4f}"
            bar.update(line, completed=moment.step, total=run.settings.steps, description=loss)
            is_logged = not console.is_terminal and time.monotonic() - last[1] >= _LOG_SECONDS
            if moment.accuracy:
                found = ", ".join(f"{name} {share:.1%}" for name, share in moment.accuracy.items())
                note(f"step {moment.step} of {run.settings.steps}: {loss}, {right}: {found}")
            elif is_logged:
                ms = 1000 * (time.monotonic() - last[1]) / max(1, moment.step - last[0])
                parts = f"answer {moment.answer:.4f}, thought {moment.thought:.4f}"
                note(f"step {moment.step} of {run.settings.steps}: {loss} ({parts}), {ms:.1f} ms a step")
            if moment.accuracy or is_logged:
                last = (moment.step, time.monotonic())  # the evaluation does not count as a step

        with _until_interrupted() as stops:
            go_on(run, out, report=report, stops=stops)
    if run.step < run.settings.steps:
        note(f"interrupted after step {run.step} of {run.settings.steps}; --resume continues")
        raise typer.Exit(_INTERRUPTED)
    write_model(run, out)
    note(f"written: {out}")


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Tells whether there was an interrupt or SIGTERM. A second one ends the process at once."""
    found = threading.Event()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: object) -> None:
        found.set()
        restore()
        note("interrupted: leaving the step and saving the run; interrupt again to leave at once")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield found.is_set
    finally:
        restore()
