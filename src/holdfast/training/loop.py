"""The training loop: AdamW with warm-up and cosine, bf16 on a GPU, gradients accumulated and clipped.

A step is a pure function of (weights, moments, settings, step): a run that was stopped goes on bit for bit as if it
had not been, on the same CPU with the same number of threads.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.training.batch import join_batches
from holdfast.training.build import Built, build
from holdfast.training.clock import Clock
from holdfast.training.compiled import autocast, compile_rowwise
from holdfast.training.evaluate import answer
from holdfast.training.loss import packed_loss
from holdfast.training.model import ThinkingModel
from holdfast.training.prefetch import Maker, Sent, ahead
from holdfast.training.settings import Settings, settings_from_json, settings_to_json
from holdfast.training.source import Source, open_topics, topic_texts
from holdfast.training.train_state import load_state, read_told, save_state

_TEST_BATCH, _TEST_THINKING = 128, 512  # texts at once; chunk by chunk is many small passes
_LOG_EVERY = 10
_LAST_SHARE = 0.02  # of the learning rate, at the end of the cosine


@dataclass(frozen=True)
class Moment:
    """What is known after a step. accuracy: task and events to a share of right answers, when it was tested."""

    step: int
    loss: float
    answer: float
    thought: float
    accuracy: dict[str, float] | None = None


Report = Callable[[Moment], None]


@dataclass
class Run:
    """A training run: what it began with, how far it is, its curves."""

    settings: Settings
    device: torch.device
    built: Built
    source: Source
    optimizer: torch.optim.Optimizer
    step: int = 0
    moments: list[Moment] = field(default_factory=list)

    @property
    def model(self) -> ThinkingModel:
        return self.built.model

    @property
    def maker(self) -> Maker:
        return Maker(self.settings, self.source, self.model.reader)

    def save(self, folder: Path) -> None:
        told: dict[str, Any] = {"settings": settings_to_json(self.settings), "step": self.step}
        save_state(
            folder, self.model, self.optimizer, told | {"moments": [vars(each) for each in self.moments]}
        )


def start_run(settings: Settings, device: torch.device) -> Run:
    topics = open_topics(settings)
    built = build(settings, topic_texts(topics) if settings.backbone is None else [])
    built.model.to(device)
    if device.type == "cuda":
        # cuDNN's attention plans anew for every number of rows, which takes longer than many steps.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if device.type == "cuda" if settings.compile is None else settings.compile:
        compile_rowwise(built.model, device)
    source = Source(settings, topics, built.tokenizer, built.eos_id)
    return Run(settings, device, built, source, _optimizer(built.model, settings))


def resume_run(folder: Path, device: torch.device) -> Run:
    """The run saved in a folder, with the settings it was started with."""
    told = read_told(folder)
    run = start_run(settings_from_json(told["settings"]), device)
    load_state(folder, run.model, run.optimizer)
    run.step = told["step"]
    run.moments = [Moment(**each) for each in told["moments"]]
    return run


def train(
    run: Run,
    folder: Path | None = None,
    until: int | None = None,
    report: Report | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> None:
    """Go on to the last step, to `until`, or until someone stops it between two steps; save into the folder on the way and at
    the end."""
    clock = Clock(run.device)
    workers = run.settings.workers
    if workers is None:
        workers = 2 if run.device.type == "cuda" else 0
    steps = ahead(run.maker, run.device, run.step, workers)
    while run.step < (run.settings.steps if until is None else min(until, run.settings.steps)):
        if stops():
            break
        s = run.settings
        parts = _take_step(run, next(steps))
        run.step += 1
        if s.minutes is not None and clock.is_due(run.step):
            run.settings = s = _in_time(run, clock, s.minutes)
        elif s.minutes is not None and clock.left(s.minutes) <= 0:
            run.settings = s = replace(s, steps=run.step, minutes=None)  # over before the pace was known
        is_last = run.step == s.steps
        is_tested = is_last or (s.eval_every > 0 and run.step % s.eval_every == 0)
        if is_tested or run.step % _LOG_EVERY == 0:
            loss, said, thought = parts.tolist()
            accuracy = measure_accuracy(run, s.tested_events, s.eval_texts) if is_tested else None
            run.moments.append(Moment(run.step, loss, said, thought, accuracy))
            if report is not None:
                report(run.moments[-1])
        if folder is not None and s.save_every > 0 and run.step % s.save_every == 0 and not is_last:
            run.save(folder)
    steps.close()
    if folder is not None:
        run.save(folder)


def measure_accuracy(run: Run, events: tuple[int, ...], count: int) -> dict[str, float]:
    """The share of right answers for each task and number of events, the model thinking its own thoughts."""
    # A file's texts have no number of events.
    asked = [
        (name, number) for name in run.settings.tasks for number in (events[:1] if ":" in name else events)
    ]
    texts = join_batches([run.source.test(name, number, count) for name, number in asked])
    order = np.argsort(texts.num_tokens, kind="stable")
    is_right = np.zeros(len(texts), dtype=np.bool_)
    run.model.eval()
    at_once = _TEST_BATCH if run.model.thinking is None else _TEST_THINKING
    for first in range(0, len(order), at_once):
        among = order[first : first + at_once]
        is_right[among] = answer(run.model, texts.take(among).part(0, len(among)), run.device).is_right
    run.model.train()
    shares = is_right.reshape(len(asked), count).mean(axis=1).tolist()
    return {f"{name} {number}": share for (name, number), share in zip(asked, shares, strict=True)}


def learning_rate(settings: Settings, step: int) -> float:
    """Up in a line, down in a cosine."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    share = _LAST_SHARE + (1 - _LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * share


def _take_step(run: Run, sent: Sent) -> torch.Tensor:
    """One step of the optimizer; its losses [total, answer, thought], still on the device."""
    s = run.settings
    parts = torch.zeros(3, device=run.device)
    run.optimizer.zero_grad(set_to_none=True)
    for texts in sent.passes:
        with autocast(run.device):
            losses = packed_loss(run.model, texts, sent.counts, s.weights)
        losses.total.backward()  # type: ignore[no-untyped-call]
        parts += torch.stack((losses.total.detach(), losses.answer, losses.thought))
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), s.clip, foreach=True)
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(s, run.step)
    run.optimizer.step()
    return parts


def _in_time(run: Run, clock: Clock, minutes: float) -> Settings:
    """The settings with as many steps as the minutes allow, tests included; after the last look they are what they are."""
    s = run.settings
    began = time.monotonic()
    measure_accuracy(run, s.tested_events, s.eval_texts)
    testing = time.monotonic() - began
    left = clock.left(minutes) - testing
    a_step = clock.step_time() + (testing / s.eval_every if s.eval_every > 0 else 0.0)
    steps = max(run.step + 1, run.step + int(left / a_step))
    return replace(s, steps=steps, minutes=None if clock.is_last_look(run.step) else minutes)


def _optimizer(model: ThinkingModel, settings: Settings) -> torch.optim.Optimizer:
    """Matrices decay; norms, biases and scales do not."""
    matrices = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=fused)
