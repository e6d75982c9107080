"""Prefetch the batches of the next steps: in a thread, or in processes if a step is shorter than
making its batch.

A batch depends only on (seed, step), so it is the same in a thread and in a process.
"""

import os
import signal
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, pairwise
from multiprocessing import get_context
from typing import Generic

import torch
from torch import Tensor

from holdfast_thinking.data.source import BatchSource
from holdfast_thinking.model.batch import Ints
from holdfast_thinking.model.loss import TokenCounts, count_tokens
from holdfast_thinking.model.packed import A, Packed, PackSpec, pack, send
from holdfast_thinking.settings import TrainingSettings


@dataclass(frozen=True)
class Step(Generic[A]):
    passes: tuple[Packed[A], ...]
    counts: TokenCounts


@dataclass(frozen=True)
class StepBuilder:
    settings: TrainingSettings
    source: BatchSource
    pack_spec: PackSpec

    def build(self, step: int) -> Step[Ints]:
        s = self.settings
        batch = self.source.batch(step)
        bounds = [index * s.batch // s.accumulate for index in range(s.accumulate + 1)]
        micro_batches = [batch.take_range(first, last) for first, last in pairwise(bounds)]
        packs = tuple(pack(each, self.pack_spec) for each in micro_batches)
        return Step(packs, count_tokens(batch, self.pack_spec.thinking))


def send_step(step: Step[Ints], device: torch.device) -> Step[Tensor]:
    return Step(tuple(send(each, device) for each in step.passes), step.counts)


def prefetch_steps(
    builder: StepBuilder, device: torch.device, first: int, workers: int
) -> Generator[Step[Tensor]]:
    """Yield the steps from `first` on. workers: number of processes that make them; 0: a thread."""
    with ExitStack() as stack:
        sender = stack.enter_context(ThreadPoolExecutor(1))
        pool: ProcessPoolExecutor | None = None
        if workers:
            pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(builder,))
            stack.enter_context(pool)

        def submit(step: int) -> Future[Step[Tensor]]:
            built = None if pool is None else pool.submit(_build_in_worker, step)
            return sender.submit(
                lambda: send_step(builder.build(step) if built is None else built.result(), device)
            )

        pending = deque(submit(first + ahead) for ahead in range(workers + 2))
        for step in count(first + len(pending)):
            yield pending.popleft().result()
            pending.append(submit(step))


_worker_builder: list[StepBuilder] = []  # of a worker process


def _begin(builder: StepBuilder) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the main process handles the interrupt
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_builder.append(builder)


def _build_in_worker(step: int) -> Step[Ints]:
    return _worker_builder[0].build(step)
