"""The training loop: AdamW with warm-up and cosine, bf16 on a GPU, gradients accumulated and
clipped.

A step is a pure function of (weights, optimizer moments, settings, step). On the same CPU with the
same number of threads, a resumed run has the same bits as one that was not interrupted.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from holdfast.errors import ConfigError
from holdfast.worker.device import choose_device
from holdfast_thinking.data.source import BatchSource, vocabulary
from holdfast_thinking.model.build import BuiltModel, build
from holdfast_thinking.model.compiled import autocast, compile_rowwise
from holdfast_thinking.model.loss import packed_loss
from holdfast_thinking.model.model import BLOCKS, ThinkingModel
from holdfast_thinking.run.export import export, load_state, read_run_info, save_state, write_curves
from holdfast_thinking.run.prefetch import Step, StepBuilder, prefetch_steps
from holdfast_thinking.run.validation import validate
from holdfast_thinking.settings import TrainingSettings, settings_from_json

_EXAMPLES_FILE = "examples.jsonl"  # in the folder of a run: those it was called with
_EVAL_BATCH, _EVAL_BATCH_THINKING = 128, 512  # texts; chunk by chunk means many small passes
_LOG_EVERY, _LOG_SECONDS = 10, 60
_SAVE_SECONDS = 300  # after which a run is saved even before its save_every-th step
_MEASURED_AT = (50, 400, 1500, 4000)  # steps after which the number of steps is set from the time of a step
_MARGIN = 0.03  # share of the time kept for saving and for variation
_LAST_SHARE = 0.02  # of the learning rate, at the end of the cosine


@dataclass(frozen=True)
class StepMetrics:
    """Losses of a step. accuracy: "task events", or "task" -> share of right answers, if it was evaluated."""

    step: int
    loss: float
    answer: float
    thought: float
    accuracy: dict[str, float] | None = None


ReportStep = Callable[[StepMetrics], None]


@dataclass
class TrainingRun:
    settings: TrainingSettings
    device: torch.device
    built: BuiltModel
    source: BatchSource
    optimizer: torch.optim.Optimizer
    step: int = 0
    metrics: list[StepMetrics] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def model(self) -> ThinkingModel:
        return self.built.model

    @property
    def step_builder(self) -> StepBuilder:
        return StepBuilder(self.settings, self.source, self.model.pack_spec)

    def save(self, folder: Path) -> None:
        info: dict[str, Any] = {"settings": asdict(self.settings), "step": self.step}
        info["moments"] = [vars(each) for each in self.metrics]
        info["threads"] = torch.get_num_threads()
        save_state(folder, self.model, self.optimizer, info)


class StepBudget:
    """Sets the number of steps of a run with `minutes`: once the run is warm, and again later, because other
    users of the machine come and go.

    The time of a run starts before its texts are made. A run that is resumed before the last measurement has
    all its minutes again. Where steps become slower later, the run ends before its last step.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._minutes = run, run.settings.minutes
        self._begun, self._first = time.monotonic(), run.step
        self._eval_seconds: float | None = None

    def settings(self) -> TrainingSettings:
        """Return the run's settings after a step, with another number of steps if that is due."""
        run, s = self._run, self._run.settings
        if s.minutes is not None and run.step in _MEASURED_AT:
            return self._fit()
        return self.end() if self.is_over else s

    def end(self) -> TrainingSettings:
        """Return settings with which the run ends after the steps it has."""
        if not self._run.step:
            raise ConfigError(f"no step ends in {self._minutes} minutes; train on a GPU, or a smaller batch")
        return replace(self._run.settings, steps=self._run.step, minutes=None)

    @property
    def is_over(self) -> bool:
        return self._minutes is not None and self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        assert self._minutes is not None
        return self._minutes * 60 * (1 - _MARGIN) - (time.monotonic() - self._run.started)

    def _fit(self) -> TrainingSettings:
        """Fit the steps, evaluations included, into the time left. The last measurement is final."""
        run, s = self._run, self._run.settings
        if run.device.type == "cuda":
            torch.cuda.synchronize(run.device)
        now = time.monotonic()
        if self._eval_seconds is None:
            start = time.monotonic()
            measure_accuracy(run, s.eval_lengths, s.eval_texts)
            self._eval_seconds = time.monotonic() - start
        left = self._seconds_left() - self._eval_seconds
        a_step = (now - self._begun) / (run.step - self._first)
        steps = max(run.step + 1, run.step + int(left / a_step))
        if s.most_steps is not None:
            steps = max(run.step, min(steps, s.most_steps))
        return replace(s, steps=steps, minutes=None if run.step >= _MEASURED_AT[-1] else s.minutes)


def start_run(settings: TrainingSettings, device: torch.device) -> TrainingRun:
    started = time.monotonic()
    built = build(settings, vocabulary(settings) if settings.backbone is None else [])
    built.model.to(device)
    if device.type == "cuda":
        # cuDNN's attention makes a new plan for every number of tokens, which takes longer than many steps.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if device.type == "cuda" if settings.compile is None else settings.compile:
        compile_rowwise(built.model, device)
    source = BatchSource(settings, built.tokenizer, built.eos_id, built.frame)
    optimizer = _optimizer(built.model, settings)
    return TrainingRun(settings, device, built, source, optimizer, started=started)


def resume_run(folder: Path, device: torch.device, threads: int | None = None) -> TrainingRun:
    """Continue a run, with the number of threads it had unless another is given."""
    info = read_run_info(folder)
    run = start_run(settings_from_json(info["settings"]), device)
    load_state(folder, run.model, run.optimizer)
    run.step = info["step"]
    torch.set_num_threads(threads or info.get("threads", torch.get_num_threads()))
    run.metrics = [StepMetrics(**each) for each in info["moments"]]
    return run


def train(
    run: TrainingRun,
    folder: Path | None = None,
    report: ReportStep | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> None:
    """Train up to the last step, or until stops(). The folder gets the state of the run, now and then."""
    budget = StepBudget(run)
    reported = saved = time.monotonic()
    workers = run.settings.workers
    if workers is None:
        workers = 4 if run.device.type == "cuda" else 0
    steps = prefetch_steps(run.step_builder, run.device, run.step, workers)
    while run.step < run.settings.steps and not stops():
        losses = _take_step(run, next(steps), lambda: stops() or budget.is_over)
        if losses is None:
            run.settings = budget.end() if budget.is_over else run.settings
            break
        run.step += 1
        run.settings = s = budget.settings()
        is_last = run.step == s.steps
        is_evaluated = is_last or (s.eval_every > 0 and run.step % s.eval_every == 0)
        is_late = time.monotonic() - reported > _LOG_SECONDS
        if is_evaluated or is_late or run.step % _LOG_EVERY == 0:
            reported = time.monotonic()
            loss, answer, thought = losses.tolist()
            if not math.isfinite(loss):
                raise ConfigError(f"the loss of step {run.step} is {loss}; train with a lower learning rate")
            accuracy = measure_accuracy(run, s.eval_lengths, s.eval_texts) if is_evaluated else None
            run.metrics.append(StepMetrics(run.step, loss, answer, thought, accuracy))
            if report is not None:
                report(run.metrics[-1])
        is_due = s.save_every > 0 and run.step % s.save_every == 0
        if folder is not None and not is_last and (is_due or time.monotonic() - saved > _SAVE_SECONDS):
            run.save(folder)
            saved = time.monotonic()
    steps.close()
    if folder is not None:
        run.save(folder)


def write_model(run: TrainingRun, folder: Path) -> None:
    """Write the model folder and the curves of a run."""
    export(run.built, run.settings, folder)
    write_curves(run.metrics, folder / "curves.jsonl")


def train_model(
    folder: Path | str,
    settings: TrainingSettings,
    examples: Iterable[Mapping[str, Any]] = (),
    report: ReportStep | None = None,
    device: str = "auto",
) -> None:
    """Train and write a model folder, as `holdfast train thinking` does.

    examples: lines of the task `jsonl`, instead of the settings' tasks; written to FOLDER/examples.jsonl.
    """
    folder = Path(folder)
    if lines := [msgspec.json.encode(each) + b"\n" for each in examples]:
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath(_EXAMPLES_FILE).write_bytes(b"".join(lines))
        settings = replace(settings, tasks=(f"jsonl:{folder / _EXAMPLES_FILE}",), shares=())
    run = start_run(settings, torch.device(str(choose_device(device))))
    train(run, folder, report)
    write_model(run, folder)


def measure_accuracy(run: TrainingRun, events: tuple[int, ...], count: int) -> dict[str, float]:
    """Return the share of right answers for each task and number of events, with the model's own thoughts."""
    cells = [
        (name, number)
        for name in run.settings.tasks
        for number in (events if run.source.has_events(name) else events[:1])
    ]
    texts = run.source.eval_batch(cells, count)
    order = np.argsort(texts.num_tokens, kind="stable")
    is_right = np.zeros(len(texts), dtype=np.bool_)
    run.model.eval()
    batch_size = _EVAL_BATCH if run.model.thinking is None else _EVAL_BATCH_THINKING
    for first in range(0, len(order), batch_size):
        among = order[first : first + batch_size]
        with autocast(run.device):
            found = validate(run.model, texts.take(among).take_range(0, len(among)), run.device)
        is_right[among] = found.is_right
    run.model.train()
    shares = is_right.reshape(len(cells), count).mean(axis=1).tolist()
    names = [f"{name} {number}" if run.source.has_events(name) else name for name, number in cells]
    return dict(zip(names, shares, strict=True))


def learning_rate(settings: TrainingSettings, step: int) -> float:
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    share = _LAST_SHARE + (1 - _LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * share


def _take_step(run: TrainingRun, step: Step[torch.Tensor], stops: Callable[[], bool]) -> torch.Tensor | None:
    """Return the losses of a step; None if it stops between two passes, which changes no weight."""
    s = run.settings
    sums = torch.zeros(3, device=run.device)
    run.optimizer.zero_grad(set_to_none=True)
    for texts in step.passes:
        if stops():
            return None
        with autocast(run.device):
            losses = packed_loss(run.model, texts, step.counts, s.weights)
        losses.total.backward()  # type: ignore[no-untyped-call]
        sums += torch.stack((losses.total.detach(), losses.answer, losses.thought))
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), s.clip, foreach=True)
    for group in run.optimizer.param_groups:
        group["lr"] = group["rate"] * learning_rate(s, run.step)
    run.optimizer.step()
    return sums


def _optimizer(model: ThinkingModel, settings: TrainingSettings) -> torch.optim.Optimizer:
    """AdamW with weight decay for matrices; none for norms, biases and scales."""
    groups = []
    for is_block, rate in ((False, 1.0), (True, settings.block_rate)):
        trained = [
            each
            for name, each in model.named_parameters()
            if each.requires_grad and name.startswith(BLOCKS) == is_block
        ]
        matrices = [each for each in trained if each.dim() > 1]
        others = [each for each in trained if each.dim() <= 1]
        groups += [
            {"params": matrices, "weight_decay": settings.weight_decay, "rate": rate},
            {"params": others, "weight_decay": 0.0, "rate": rate},
        ]
    groups = [each for each in groups if each["params"]]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=fused)
