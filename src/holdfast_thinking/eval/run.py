"""Run an evaluation: models, eval sets, and the measurements that are asked for."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from holdfast.errors import ConfigError
from holdfast.worker.device import choose_device, cpu_name
from holdfast_thinking.data.names import known_tasks
from holdfast_thinking.eval.ablation import swap_last_thought, zero_states
from holdfast_thinking.eval.accuracy import measure_cell, thought_examples
from holdfast_thinking.eval.latency import EVENTS as LATENCY_EVENTS
from holdfast_thinking.eval.latency import TASK as LATENCY_TASK
from holdfast_thinking.eval.latency import measure_latency
from holdfast_thinking.eval.model import EvalModel, OpenLLM, open_model
from holdfast_thinking.eval.report import EvalReport
from holdfast_thinking.run.export import read_training_info

Note = Callable[[str], None]
_NUM_TIMED = 25  # texts, for latency
_NUM_EXAMPLES = 2  # prompts of each task whose thoughts are kept


@dataclass(frozen=True)
class ModelFolder:
    name: str
    folder: Path


@dataclass(frozen=True)
class EvalSettings:
    """tasks: empty means those of the first model's training."""

    tasks: tuple[str, ...] = ()
    events: tuple[int, ...] = (10, 20, 40, 60, 80, 100)
    count: int = 500
    seed: int = 1
    ablate: bool = False
    latency: bool = False


def run_eval(
    folders: Sequence[ModelFolder],
    settings: EvalSettings,
    open_llm: OpenLLM,
    out: Path | None,
    note: Note,
) -> EvalReport:
    """All models are loaded at once, so that they can be timed in turns."""
    names = [each.name for each in folders]
    if len(set(names)) < len(names):
        raise ConfigError(f"every model needs its own name, not {', '.join(names)}")
    first = read_training_info(folders[0].folder)
    tasks = settings.tasks or tuple(task for task in first.tasks if ":" not in task)
    if not tasks:
        raise ConfigError(f"{folders[0].folder} was trained on files only; give a task: {known_tasks()}")
    models = []
    for each in folders:
        note(f"opening {each.name}: {each.folder}")
        models.append(open_model(each.name, each.folder, open_llm, tasks, settings.seed, first.long_texts))
    report = _start(models, settings, tasks, first.long_texts)
    if settings.latency:
        task = LATENCY_TASK if LATENCY_TASK in tasks else tasks[0]
        note(f"latency of single requests: {_NUM_TIMED} texts of {task}, all models in turns")
        events = _latency_events(models[0], task, settings.events)
        report.latency = measure_latency(models, _NUM_TIMED, events, task)
        report.save(out)
    for model in models:
        _measure_accuracy(model, tasks, settings, report, out, note)
    report.save(out)
    return report


def _latency_events(model: EvalModel, task: str, events: tuple[int, ...]) -> int:
    if not model.eval_set.has_events(task):
        return 0
    return LATENCY_EVENTS if task == LATENCY_TASK else max(events)


def _measure_accuracy(
    model: EvalModel,
    tasks: tuple[str, ...],
    settings: EvalSettings,
    report: EvalReport,
    out: Path | None,
    note: Note,
) -> None:
    for task in tasks:
        for events in settings.events if model.eval_set.has_events(task) else (0,):
            prompts = model.eval_set.draw(task, events, settings.count)
            cell, results = measure_cell(model, task, events, prompts)
            report.accuracy.append(cell)
            length = f", {events} events" if events else ""
            note(f"{model.name}, {task}{length}: {cell.accuracy:.1%} in {cell.seconds:.1f} s")
            if model.thinking is not None:
                report.examples += thought_examples(model, task, prompts, results)[:_NUM_EXAMPLES]
            if settings.ablate and model.thinking is not None:
                report.zeroed.append(zero_states(model, task, events, prompts))
                if task == "parity":
                    report.swapped.append(swap_last_thought(model, events, prompts, results))
            report.save(out)


def _start(
    models: Sequence[EvalModel], settings: EvalSettings, tasks: tuple[str, ...], long_texts: bool
) -> EvalReport:
    config = models[0].llm.config
    device = choose_device(config.device, config.kernels)
    report = EvalReport(
        machine=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        torch=torch.__version__,
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
