"""Prefetch the batches of the next steps: in a thread, or in processes if a step is shorter than
making its batch.

A batch depends only on (seed, step), so it is the same in a thread and in a process.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context

import torch
from torch import Tensor

from holdfast_thinking.data.source import BatchSource
from holdfast_thinking.model.batch import Ints
from holdfast_thinking.model.loss import TokenCounts, count_tokens
from holdfast_thinking.model.packed import Packed, PackSpec, pack, send
from holdfast_thinking.settings import TrainingSettings


@dataclass(frozen=True)
class HostStep:
    """The packed passes of a step, on the host."""

    passes: tuple[Packed[Ints], ...]
    counts: TokenCounts


@dataclass(frozen=True)
class DeviceStep:
    """The packed passes of a step, on the device."""

    passes: tuple[Packed[Tensor], ...]
    counts: TokenCounts


@dataclass(frozen=True)
class StepBuilder:
    """Makes the passes of a step."""

    settings: TrainingSettings
    source: BatchSource
    pack_spec: PackSpec

    def build(self, step: int) -> HostStep:
        s = self.settings
        batch = self.source.batch(step)
        bounds = [index * s.batch // s.accumulate for index in range(s.accumulate + 1)]
        micro_batches = [batch.take_range(first, last) for first, last in pairwise(bounds)]
        packs = tuple(pack(each, self.pack_spec, s.weights.text != 0) for each in micro_batches)
        return HostStep(packs, count_tokens(batch, self.pack_spec.while_answering))


def send_step(step: HostStep, device: torch.device) -> DeviceStep:
    return DeviceStep(tuple(send(each, device) for each in step.passes), step.counts)


def prefetch_steps(
    builder: StepBuilder, device: torch.device, first: int, workers: int
) -> Generator[DeviceStep]:
    """The steps from `first` on. workers: number of processes that make them; 0: a thread."""
    with ExitStack() as stack:
        build: Callable[[int], Callable[[], HostStep]]
        if workers:
            pool = stack.enter_context(
                ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(builder,))
            )

            def build(step: int) -> Callable[[], HostStep]:
                return pool.submit(_build_in_worker, step).result
        else:

            def build(step: int) -> Callable[[], HostStep]:
                return lambda: builder.build(step)

        sender = stack.enter_context(ThreadPoolExecutor(1))
        pending: deque[Future[DeviceStep]] = deque()
        step = first
        while True:
            while len(pending) < workers + 2:
                pending.append(sender.submit(_send_when_built, build(step), device))
                step += 1
            yield pending.popleft().result()


def _send_when_built(wait: Callable[[], HostStep], device: torch.device) -> DeviceStep:
    return send_step(wait(), device)


_worker_builder: list[StepBuilder] = []  # of a worker process


def _begin(builder: StepBuilder) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the main process handles the interrupt
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_builder.append(builder)


def _build_in_worker(step: int) -> HostStep:
    return _worker_builder[0].build(step)
