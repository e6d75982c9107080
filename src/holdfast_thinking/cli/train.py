"""`holdfast train`: options, progress and interrupts for `holdfast_thinking`."""

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

from holdfast.cli.console import note, stderr
from holdfast.cli.help_format import App
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.requirements import require_packages
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast_thinking.data.names import known_tasks

if TYPE_CHECKING:
    from holdfast_thinking.run.loop import StepMetrics, TrainingRun
    from holdfast_thinking.settings import TrainingSettings

train = App(help="Train models that think while they read.", no_args_is_help=True)
_FORMS = ("thinking", "none", "cot")
_THOUGHTS = ("changed", "all", "worked")
_LOG_STEPS = 250  # steps between log lines without a terminal
_INTERRUPTED = 130  # the exit code of a shell


@train.callback()
def start() -> None:
    """Train models that think while they read."""


@train.command()
def thinking(
    out: Annotated[Path, typer.Option(help="Folder for the model, its curves and the train state.")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="coin: the built-in model. backbone: tasks in chat form on a pretrained model. short: parity of "
            "four events, one minute on a laptop."
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {known_tasks()}; may be repeated."),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            help="Shares of a batch, a number for each --task, separated by commas. Default: equal."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            help="thinking, or a baseline: none, cot (writes the thoughts, or restates every event)."
        ),
    ] = None,
    max_events: Annotated[
        int | None, typer.Option("--max-events", "-n", min=1, help="Maximum number of events of a text, N.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Size of a new backbone: tiny, small, coin or large.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="A model to start from, instead of a size: a folder, a .gguf file, a built-in name. T and C of a "
            "thinking model or an adapter are trained further."
        ),
    ] = None,
    adapter: Annotated[
        bool | None,
        typer.Option(
            "--adapter", help="Train T and C only; the backbone stays as it is.", show_default=False
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Texts are messages in the backbone's chat template."),
    ] = None,
    follow_ups: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the messages that follow another one and its answer, with --chat.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=0, help="Attention window; 0: no limit, or the one --backbone has (its default)."),
    ] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="Number of tokens of a chunk, C.")] = None,
    max_thought: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens of a thought.")
    ] = None,
    l_in: Annotated[
        int | None, typer.Option(min=1, help="Number of layers after which a state is added.")
    ] = None,
    l_out: Annotated[
        int | None,
        typer.Option(min=1, help="Number of layers after which T reads. Default: all but the last."),
    ] = None,
    thought_delay: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of tokens after the one that settles a thought before it is written."
        ),
    ] = None,
    thinks_answer: Annotated[
        bool | None,
        typer.Option(
            "--think-answer/--no-think-answer",
            help="Think the answer at the end of a chat message. Default: with --adapter.",
            show_default=False,
        ),
    ] = None,
    while_answering: Annotated[
        bool | None,
        typer.Option(
            "--while-answering/--no-while-answering",
            help="Think while answering as well, or only while reading.",
        ),
    ] = None,
    carry: Annotated[
        bool | None,
        typer.Option(
            "--carry/--no-carry",
            help="Add a state to all chunks up to the next thought, or to the next chunk only.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.0, help="Duration of the run: as many steps as fit, with --steps at most those."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Number of texts of a step.")] = None,
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="Number of passes of a step (gradient accumulation).")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0.0, help="Maximum learning rate.")] = None,
    block_rate: Annotated[
        float | None, typer.Option(min=0.0, help="Learning rate of T and C, as a multiple.")
    ] = None,
    variables_thought: Annotated[
        str | None, typer.Option(help="Contents of a thought in the variables task: changed, all or worked.")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Use only so many texts of each file and task. Default: a task makes new ones for every step.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of weights and texts.")] = None,
    eval_every: Annotated[
        int | None, typer.Option(min=0, help="Number of steps between evaluations; 0: only at the end.")
    ] = None,
    eval_texts: Annotated[
        int | None, typer.Option(min=1, help="Number of texts of each task and length in an evaluation.")
    ] = None,
    compile_: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Compile the layers. Default: on a GPU."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that generate texts; 0: a thread. Default: 4 on a GPU."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again even if --out has a run.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    num_threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None,
) -> None:
    """Train a thinking model, or a baseline, and write it as a model folder."""
    require_packages("matplotlib", extra="train", what="training")
    from holdfast.numerics.settings import apply_numeric_settings
    from holdfast_thinking.run.loop import resume_run, start_run
    from holdfast_thinking.settings import SIZES

    if num_threads is not None:
        apply_numeric_settings(num_threads)
    changes: dict[str, Any] = {
        "tasks": tuple(task) if task else None,
        "form": _one_of("--form", form, _FORMS),
        "max_events": max_events,
        "size": None if size is None else SIZES[_one_of("--size", size, tuple(SIZES)) or ""],
        "backbone": backbone,
        "adapter": adapter,
        "chat": chat,
        "follow_ups": follow_ups,
        "examples": examples,
        "chunk": chunk,
        "max_thought": max_thought,
        "l_in": l_in,
        "l_out": l_out,
        "thought_delay": thought_delay,
        "thinks_answer": adapter if thinks_answer is None else thinks_answer,
        "while_answering": while_answering,
        "carry": carry,
        "steps": steps,
        "minutes": minutes,
        "batch": batch,
        "accumulate": accumulate,
        "learning_rate": learning_rate,
        "block_rate": block_rate,
        "variables_thought": _one_of("--variables-thought", variables_thought, _THOUGHTS),
        "seed": seed,
        "eval_every": eval_every,
        "eval_texts": eval_texts,
        "compile": compile_,
        "workers": workers,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if task or shares:
        changes["shares"] = () if shares is None else _numbers("--shares", shares)
    if steps is not None and minutes is not None:
        changes["most_steps"] = steps
    if window is not None or backbone is not None:
        changes["window"] = window or None
    if resume and (changes or preset):
        raise ConfigError(
            "--resume continues with the settings of the run in --out; other options cannot be given"
        )
    where = _device(device)
    if resume:
        run = resume_run(out, where)
    else:
        settings = _settings(preset, changes)
        _require_place(out, overwrite)
        run = start_run(settings, where)
    _train(run, out)


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


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; expected whole numbers with commas between them") from None


def _require_place(out: Path, overwrite: bool) -> None:
    """The folder can be written, and no run in it would be overwritten."""
    from holdfast_thinking.run.state import STATE_FILE

    if (out / STATE_FILE).exists() and not overwrite:
        raise ConfigError(f"{out} has a run; --resume continues it, --overwrite starts again")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(f"{out} cannot be written to: {error.strerror or error}") from error


def _settings(preset: str | None, changes: dict[str, Any]) -> "TrainingSettings":
    from holdfast_thinking.settings import PRESETS, TrainingSettings

    if preset is not None:
        _one_of("--preset", preset, tuple(PRESETS))
        return replace(PRESETS[preset], **changes)
    return replace(TrainingSettings(), **changes)


def _one_of(option: str, value: str | None, known: tuple[str, ...]) -> str | None:
    if value is not None and value not in known:
        raise ConfigError(f"{option} is {value!r}; expected one of {', '.join(known)}")
    return value


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"there is no device {name!r} here; expected auto, cpu or cuda")
    return torch.device(name)


def _train(run: "TrainingRun", out: Path) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from holdfast_thinking.run.export import export
    from holdfast_thinking.run.loop import train as go_on
    from holdfast_thinking.run.plot import plot_curves

    count = sum(each.numel() for each in run.model.parameters())
    note(f"{count / 1e6:.1f} million parameters, {', '.join(run.settings.tasks)}, on {run.device}")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = stderr()
    timer = _StepTimer(run.step)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("training", total=run.settings.steps, completed=run.step)

        def report(moment: "StepMetrics") -> None:
            line_start = f"step {moment.step} of {run.settings.steps}: loss {moment.loss:.4f}"
            bar.update(
                line, completed=moment.step, total=run.settings.steps, description=f"loss {moment.loss:.4f}"
            )
            if moment.accuracy:
                shown = ", ".join(f"{name} {share:.1%}" for name, share in moment.accuracy.items())
                note(f"{line_start}, right: {shown}")
                timer.lap(moment.step)  # the evaluation does not count as a step
            elif not console.is_terminal and moment.step % _LOG_STEPS == 0:
                parts = f"answer {moment.answer:.4f}, thought {moment.thought:.4f}"
                note(f"{line_start} ({parts}), {timer.lap(moment.step):.1f} ms a step")

        with _until_interrupted() as stops:
            go_on(run, out, report=report, stops=stops)
    if run.step < run.settings.steps:
        note(f"interrupted after step {run.step} of {run.settings.steps}; --resume continues")
        raise typer.Exit(_INTERRUPTED)
    export(run.built, run.settings, out)
    plot_curves(run.metrics, out / "curves.png")
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
        note("interrupted: finishing the step and saving the run; interrupt again to leave at once")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield found.is_set
    finally:
        restore()


class _StepTimer:
    """Measures the time of a step."""

    def __init__(self, step: int) -> None:
        self._step, self._time = step, time.monotonic()

    def lap(self, step: int) -> float:
        """Milliseconds for each step since the last call."""
        now = time.monotonic()
        passed = (now - self._time) * 1000 / max(1, step - self._step)
        self._step, self._time = step, now
        return passed
