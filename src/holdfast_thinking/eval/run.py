"""Run an evaluation: models, eval sets, and the measurements that are asked for."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.receipts.machine import library_version
from holdfast.worker.device import choose_device, device_name
from holdfast_thinking.eval.measures import measure_accuracy, zero_states
from holdfast_thinking.eval.model import EvalModel, OpenLLM
from holdfast_thinking.eval.report import EvalReport
from holdfast_thinking.run.export import read_training_info
from holdfast_thinking.settings import known_tasks

Note = Callable[[str], None]


@dataclass(frozen=True)
class EvalSettings:
    """tasks: empty means those of the first model's training."""

    tasks: tuple[str, ...] = ()
    events: tuple[int, ...] = (10, 20, 40, 60, 80, 100)
    count: int = 500
    seed: int = 1
    ablate: bool = False


def run_eval(
    folders: Sequence[tuple[str, Path]],
    settings: EvalSettings,
    open_llm: OpenLLM,
    out: Path | None,
    note: Note,
) -> EvalReport:
    """Evaluate models by name and folder."""
    names = [name for name, _ in folders]
    if len(set(names)) < len(names):
        raise ConfigError(f"every model needs its own name, not {', '.join(names)}")
    first = read_training_info(folders[0][1])
    tasks = settings.tasks or tuple(task for task in first.tasks if ":" not in task)
    if not tasks:
        raise ConfigError(f"{folders[0][1]} was trained on files only; give a task: {known_tasks()}")
    models = []
    for name, folder in folders:
        note(f"opening {name}: {folder}")
        models.append(EvalModel(name, folder, open_llm, tasks, settings.seed, first.long_texts))
    report = _start(models, settings, tasks, first.long_texts)
    for model in models:
        for task in tasks:
            for events in settings.events if model.source.has_events(task) else (0,):
                _measure(model, task, events, settings, report, note)
                report.save(out)
    return report


def _measure(
    model: EvalModel, task: str, events: int, settings: EvalSettings, report: EvalReport, note: Note
) -> None:
    prompts = model.draw(task, events, settings.count)
    row, _ = measure_accuracy(model, task, events, prompts)
    report.accuracy.append(row)
    length = f", {events} events" if events else ""
    note(f"{model.name}, {task}{length}: {row['accuracy']:.1%} in {row['seconds']:.1f} s")
    if settings.ablate and model.thinking is not None:
        report.zeroed.append(zero_states(model, task, events, prompts))


def _start(
    models: Sequence[EvalModel], settings: EvalSettings, tasks: tuple[str, ...], long_texts: bool
) -> EvalReport:
    config = models[0].llm.config
    device = choose_device(config.device, config.kernels)
    report = EvalReport(
        machine=device_name(device),
        torch=library_version("torch") or "none",
        settings={**asdict(settings), "tasks": tasks, "long_texts": long_texts},
    )
    for each in models:
        report.models[each.name] = {
            **asdict(each.info),
            "folder": str(each.folder),
            "chunk": None if each.thinking is None else each.thinking.chunk,
            "fingerprint": each.llm.engine.fingerprint.digest,
        }
    return report
