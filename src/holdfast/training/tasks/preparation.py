"""Make and tokenise the texts of a run, in processes if there are many.

Texts are made in shards of a fixed size, each from its own random numbers, so that they do not depend
on the number of processes.
"""

import os
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

from holdfast.training.tasks.task import TextTask
from holdfast.training.tasks.text_examples import (
    PreparedTexts,
    TextExample,
    TextRules,
    join_prepared,
    prepare_texts,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHARD = 1000  # texts
_FEW = 5000  # texts that are not worth processes
_MOST_PROCESSES = 14


@dataclass(frozen=True)
class Shard:
    """Examples, or the task that makes `count` of them."""

    examples: tuple[TextExample, ...] = ()
    task: TextTask | None = None
    seed: str = ""
    count: int = 0
    most: int = 1  # events

    def texts(self) -> list[TextExample]:
        if self.task is None:
            return list(self.examples)
        rng = random.Random(self.seed)
        return [self.task.example(rng, rng.randint(1, self.most)) for _ in range(self.count)]


def shards_of(examples: Sequence[TextExample]) -> list[Shard]:
    return [Shard(tuple(examples[first : first + _SHARD])) for first in range(0, len(examples), _SHARD)]


def shards_made_by(task: TextTask, seed: str, count: int, most: int) -> list[Shard]:
    return [
        Shard((), task, f"{seed} {first}", min(_SHARD, count - first), most)
        for first in range(0, count, _SHARD)
    ]


def prepare_all(
    by_name: dict[str, list[Shard]], tokenizer: "Tokenizer", rules: TextRules
) -> dict[str, PreparedTexts]:
    flat = [shard for shards in by_name.values() for shard in shards]
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1)
    if sum(len(each.examples) + each.count for each in flat) <= _FEW or processes < 2:
        done = [prepare_texts(each.texts(), tokenizer, rules) for each in flat]
    else:
        with ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=_begin, initargs=(tokenizer, rules)
        ) as pool:
            done = list(pool.map(_prepare_in_worker, flat))
    parts = iter(done)
    return {name: join_prepared([next(parts) for _ in shards]) for name, shards in by_name.items()}


_worker: "list[tuple[Tokenizer, TextRules]]" = []  # of a worker process


def _begin(tokenizer: "Tokenizer", rules: TextRules) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles the interrupt
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker.append((tokenizer, rules))


def _prepare_in_worker(shard: Shard) -> PreparedTexts:
    tokenizer, rules = _worker[0]
    return prepare_texts(shard.texts(), tokenizer, rules)
