"""The steps' texts, made before they are needed: by a thread, or by processes where a step is shorter than making one.

What a step reads depends on (seed, step) alone, so it is the same whoever makes it.
"""

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

from holdfast.training.batch import Ints
from holdfast.training.loss import Counts, count_tokens
from holdfast.training.packed import Packed, Reader, pack, send
from holdfast.training.settings import Settings
from holdfast.training.source import Source


@dataclass(frozen=True)
class Made:
    """A step's texts in passes."""

    passes: tuple[Packed[Ints], ...]
    counts: Counts


@dataclass(frozen=True)
class Sent:
    """The same on the device."""

    passes: tuple[Packed[Tensor], ...]
    counts: Counts


@dataclass(frozen=True)
class Maker:
    settings: Settings
    source: Source
    reader: Reader

    def make(self, step: int) -> Made:
        s = self.settings
        batch = self.source.batch(step)
        cuts = [index * s.batch // s.accumulate for index in range(s.accumulate + 1)]
        parts = [batch.part(first, last) for first, last in pairwise(cuts)]
        packs = tuple(pack(part, self.reader, s.weights.text != 0) for part in parts)
        return Made(packs, count_tokens(batch, self.reader.while_answering))


def send_made(made: Made, device: torch.device) -> Sent:
    return Sent(tuple(send(each, device) for each in made.passes), made.counts)


def ahead(maker: Maker, device: torch.device, first: int, workers: int) -> Generator[Sent]:
    """The steps from `first` on. workers: processes that make them, 0 for none."""
    with ExitStack() as stack:
        make: Callable[[int], Callable[[], Made]]
        if workers:
            pool = stack.enter_context(
                ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(maker,))
            )

            def make(step: int) -> Callable[[], Made]:
                return pool.submit(_make, step).result
        else:

            def make(step: int) -> Callable[[], Made]:
                return lambda: maker.make(step)

        sender = stack.enter_context(ThreadPoolExecutor(1))
        coming: deque[Future[Sent]] = deque()
        step = first
        while True:
            while len(coming) < workers + 2:
                coming.append(sender.submit(_send_when_made, make(step), device))
                step += 1
            yield coming.popleft().result()


def _send_when_made(made: Callable[[], Made], device: torch.device) -> Sent:
    return send_made(made(), device)


_held: list[Maker] = []  # of a process that does nothing else


def _begin(maker: Maker) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal interrupts all processes; one of them decides what it means
    torch.set_num_threads(1)
    _held.append(maker)


def _make(step: int) -> Made:
    return _held[0].make(step)
