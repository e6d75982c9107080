"""The training loop: AdamW with warm-up and cosine, bf16 on a GPU, gradients accumulated and clipped.

A step is a pure function of (weights, moments, settings, step): a run that was stopped goes on bit for bit as if it
had not been, on the same CPU with the same number of threads.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.train.batch import Batch
from holdfast.train.build import Built, build
from holdfast.train.evaluate import answer
from holdfast.train.loss import compute_loss, count_tokens
from holdfast.train.model import ThinkingModel
from holdfast.train.saved import load_state, read_told, save_state
from holdfast.train.settings import Settings, settings_from_json, settings_to_json
from holdfast.train.source import Source, open_topics, topic_texts

_TEST_BATCH = 128
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

    def save(self, folder: Path) -> None:
        told: dict[str, Any] = {"settings": settings_to_json(self.settings), "step": self.step}
        save_state(
            folder, self.model, self.optimizer, told | {"moments": [vars(each) for each in self.moments]}
        )


def start_run(settings: Settings, device: torch.device) -> Run:
    topics = open_topics(settings)
    built = build(settings, topic_texts(topics) if settings.backbone is None else [])
    built.model.to(device)
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
    run: Run, folder: Path | None = None, until: int | None = None, report: Report | None = None
) -> None:
    """Go on to the last step, or to `until`; save into the folder on the way and at the end."""
    s = run.settings
    last = s.steps if until is None else min(until, s.steps)
    for batch in _ahead(run.source, run.step, last):
        parts = _take_step(run, batch)
        run.step += 1
        is_tested = run.step == s.steps or (s.eval_every > 0 and run.step % s.eval_every == 0)
        if is_tested or run.step % _LOG_EVERY == 0:
            loss, said, thought = parts.tolist()
            accuracy = measure_accuracy(run, s.tested_events, s.eval_texts) if is_tested else None
            run.moments.append(Moment(run.step, loss, said, thought, accuracy))
            if report is not None:
                report(run.moments[-1])
        if folder is not None and s.save_every > 0 and run.step % s.save_every == 0 and run.step != last:
            run.save(folder)
    if folder is not None:
        run.save(folder)


def measure_accuracy(run: Run, events: tuple[int, ...], count: int) -> dict[str, float]:
    """The share of right answers for each task and number of events, the model thinking its own thoughts."""
    found = {}
    run.model.eval()
    for name in run.settings.tasks:
        for number in events:
            right = 0
            for index, first in enumerate(range(0, count, _TEST_BATCH)):
                batch = run.source.test(name, number, min(_TEST_BATCH, count - first), index)
                right += int(answer(run.model, batch, run.device).is_right.sum())
            found[f"{name} {number}"] = right / count
            if ":" in name:
                break  # a file's texts have no number of events
    run.model.train()
    return found


def learning_rate(settings: Settings, step: int) -> float:
    """Up in a line, down in a cosine."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    share = _LAST_SHARE + (1 - _LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * share


def _take_step(run: Run, batch: Batch) -> torch.Tensor:
    """One step of the optimizer; its losses [total, answer, thought], still on the device."""
    s, thinking = run.settings, run.model.thinking
    counts = count_tokens(batch, thinking is not None and thinking.while_answering)
    parts = torch.zeros(3, device=run.device)
    run.optimizer.zero_grad(set_to_none=True)
    for index in range(s.accumulate):
        part = batch.part(index * s.batch // s.accumulate, (index + 1) * s.batch // s.accumulate)
        with torch.autocast("cuda", torch.bfloat16) if run.device.type == "cuda" else nullcontext():
            losses = compute_loss(run.model, part, counts, s.weights, run.device)
        losses.total.backward()  # type: ignore[no-untyped-call]
        parts += torch.stack((losses.total.detach(), losses.answer, losses.thought))
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), s.clip)
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(s, run.step)
    run.optimizer.step()
    return parts


def _optimizer(model: ThinkingModel, settings: Settings) -> torch.optim.Optimizer:
    """Matrices decay; norms, biases and scales do not."""
    matrices = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))


def _ahead(source: Source, first: int, last: int) -> Iterator[Batch]:
    """The batches of the steps, each made while the one before is learned."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(source.batch, first)
        for step in range(first, last):
            batch = coming.result()
            if step + 1 < last:
                coming = maker.submit(source.batch, step + 1)
            yield batch
