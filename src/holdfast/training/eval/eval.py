"""An exam: models, what they are asked, and which further measurements are taken."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from holdfast.errors import ConfigError
from holdfast.training.eval.ablation import swap, zero
from holdfast.training.eval.accuracy import examine
from holdfast.training.eval.cost import measure_cost
from holdfast.training.eval.latency import TASK as LATENCY_TASK
from holdfast.training.eval.latency import measure_latency
from holdfast.training.eval.model import Open, Subject, open_subject
from holdfast.training.eval.report import Report
from holdfast.training.eval.rounds import measure_rounds
from holdfast.training.training_record import read_record
from holdfast.worker.device import choose_device, cpu_name

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """A model folder. A baseline is asked fewer texts, and none of its thoughts."""

    name: str
    folder: Path
    is_baseline: bool = False


@dataclass(frozen=True)
class ExamSettings:
    """tasks: empty for those the first model was trained on. long_texts: None as it was."""

    tasks: tuple[str, ...] = ()
    events: tuple[int, ...] = (10, 20, 40, 60, 80, 100)
    count: int = 500
    baseline_count: int = 100
    seed: int = 1
    long_texts: bool | None = None
    deterministic: bool = True
    ablate: bool = False
    latency: bool = False
    latency_count: int = 25
    rounds: bool = False
    cost: bool = False
    accuracy: bool = True


def hold_exam(
    candidates: Sequence[Candidate],
    settings: ExamSettings,
    open_llm: Open,
    out: Path | None,
    tell: Tell,
) -> Report:
    """All models are open at once: they are compared in turns, not one after the other."""
    names = [each.name for each in candidates]
    if len(set(names)) < len(names):
        raise ConfigError(f"every model needs a name of its own; these have {', '.join(names)}")
    first = read_record(candidates[0].folder)
    tasks = settings.tasks or tuple(task for task in first.tasks if ":" not in task)
    if not tasks:
        raise ConfigError(
            f"{candidates[0].folder} was trained on files alone; name a task: parity or variables"
        )
    if settings.latency and LATENCY_TASK not in tasks:
        raise ConfigError(
            f"latency is measured on {LATENCY_TASK}; add --task {LATENCY_TASK}, or leave --latency out"
        )
    long_texts = first.long_texts if settings.long_texts is None else settings.long_texts
    subjects = []
    for each in candidates:
        tell(f"opening {each.name}: {each.folder}")
        subjects.append(
            open_subject(
                each.name, each.folder, open_llm, tasks, settings.seed, long_texts, settings.deterministic
            )
        )
    report = _start(subjects, settings, tasks, long_texts)
    counts = [settings.baseline_count if each.is_baseline else settings.count for each in candidates]
    if settings.latency:
        tell(f"one request alone: {settings.latency_count} texts, all models in turns")
        report.latency = measure_latency(subjects, settings.latency_count)
        report.save(out)
    if settings.accuracy:
        for subject, count in zip(subjects, counts, strict=True):
            _ask_all(subject, count, max(counts), tasks, settings, report, out, tell)
    thinkers = [each for each in subjects if each.thinking is not None]
    for subject in thinkers if settings.rounds else ():
        tell(f"{subject.name}: guessed thoughts against chunk by chunk")
        report.rounds += measure_rounds(subject)
        report.save(out)
    for subject in thinkers if settings.cost else ():
        tell(f"{subject.name}: what a token costs")
        report.cost += measure_cost(subject, open_llm)
        report.save(out)
    report.save(out)
    return report


def _ask_all(
    subject: Subject,
    count: int,
    most: int,
    tasks: tuple[str, ...],
    settings: ExamSettings,
    report: Report,
    out: Path | None,
    tell: Tell,
) -> None:
    """most: texts that are drawn, of which the first are asked, so that who is asked fewer is asked some of the same."""
    for task in tasks:
        for events in settings.events:
            questions = subject.papers.draw(task, events, most)[:count]
            cell, results = examine(subject, task, events, questions)
            report.accuracy.append(cell)
            tell(f"{subject.name}, {task}, {events} events: {cell.accuracy:.1%} in {cell.seconds:.1f} s")
            if settings.ablate and subject.thinking is not None:
                report.zeroed.append(zero(subject, task, events, questions))
                if task == "parity":
                    report.swapped.append(swap(subject, events, questions, results))
            report.save(out)


def _start(
    subjects: Sequence[Subject], settings: ExamSettings, tasks: tuple[str, ...], long_texts: bool
) -> Report:
    config = subjects[0].llm.config
    device = choose_device(config.device, config.kernels)
    report = Report(
        machine=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        torch=torch.__version__,
        settings={**asdict(settings), "tasks": tasks, "long_texts": long_texts},
    )
    for each in subjects:
        report.models[each.name] = {
            **asdict(each.record),
            "folder": str(each.folder),
            "chunk": None if each.thinking is None else each.thinking.chunk,
            "fingerprint": each.llm.engine.fingerprint.digest,
        }
    return report
