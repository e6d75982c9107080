"""Tokenise the texts of files, in processes if there are many."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

from holdfast_thinking.data.text_examples import (
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


def prepare_all(
    by_name: dict[str, list[TextExample]], tokenizer: "Tokenizer", rules: TextRules
) -> dict[str, PreparedTexts]:
    """The examples of each task, ready for batches."""
    shards = {
        name: [examples[first : first + _SHARD] for first in range(0, len(examples), _SHARD)]
        for name, examples in by_name.items()
    }
    flat = [shard for each in shards.values() for shard in each]
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1)
    if sum(map(len, flat)) <= _FEW or processes < 2:
        done = [prepare_texts(each, tokenizer, rules) for each in flat]
    else:
        with ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=_begin, initargs=(tokenizer, rules)
        ) as pool:
            done = list(pool.map(_prepare_in_worker, flat))
    parts = iter(done)
    return {name: join_prepared([next(parts) for _ in each]) for name, each in shards.items()}


_worker: "list[tuple[Tokenizer, TextRules]]" = []  # of a worker process


def _begin(tokenizer: "Tokenizer", rules: TextRules) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles the interrupt
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker.append((tokenizer, rules))


def _prepare_in_worker(examples: Sequence[TextExample]) -> PreparedTexts:
    tokenizer, rules = _worker[0]
    return prepare_texts(examples, tokenizer, rules)
