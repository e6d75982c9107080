"""Training and validation batches of the tasks.

A batch depends only on (seed, step), so that a run can be resumed exactly. What a task makes is drawn for
every batch, so a run has no texts to make before it starts.
"""

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast_thinking.data.jsonl import read_chat, read_thoughts
from holdfast_thinking.data.text_examples import ChatFrame, TextExample, TextRules, TextTask, make_batch
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.settings import TrainingSettings, is_own_task, require_tasks
from holdfast_thinking.tasks.coin_talk import CoinTalk
from holdfast_thinking.tasks.outside import Outside
from holdfast_thinking.tasks.parity import Parity
from holdfast_thinking.tasks.variable_talk import VariableTalk
from holdfast_thinking.tasks.variables import Variables

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TRAIN = 0
_MOST_EVENTS = 6  # of a prompt without its answer
_HELD_OUT = 10  # every tenth example of a file is for validation
_READERS: dict[str, Callable[[Path], list[TextExample]]] = {"jsonl": read_thoughts, "chat": read_chat}
_TASKS: dict[str, Callable[[TrainingSettings], TextTask]] = {
    "parity": lambda settings: Parity(settings.long_texts),
    "variables": lambda settings: Variables(settings.long_texts),
    "any-variables": lambda settings: Variables(settings.long_texts, any_number=True),
    "coin-talk": lambda settings: CoinTalk(),
    "variable-talk": lambda settings: VariableTalk(),
    "outside": lambda settings: Outside(),
}
Topic = TextTask | list[TextExample]  # a file is its examples


def open_topic(name: str, settings: TrainingSettings) -> Topic:
    require_tasks([name])
    if name in _TASKS:
        return _TASKS[name](settings)
    if is_own_task(name):
        return _load_task(name)(settings)
    kind, _, path = name.partition(":")
    return _READERS[kind](Path(path))


def _load_task(name: str) -> Callable[[TrainingSettings], TextTask]:
    path, _, attribute = name.rpartition(":")
    spec = spec_from_file_location(f"task_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    found = getattr(module, attribute, None)
    if not callable(found) or not hasattr(found, "example") or not hasattr(found, "words"):
        raise ConfigError(f"{path} has no task {attribute}; expected a class with `words` and `example`")
    task: Callable[[TrainingSettings], TextTask] = found
    return task


def draw_prompts(task: str, count: int, seed: int) -> list[str]:
    """Prompts of a task as chat messages, of a file without those held out."""
    topic = open_topic(task, TrainingSettings(tasks=(task,)))
    rng = random.Random(f"prompts {seed} {_file_name(task)}")
    if isinstance(topic, list):
        examples = _split(topic, held_out=False)
        examples = rng.sample(examples, min(count, len(examples)))
    else:
        examples = [topic.example(rng, rng.randint(1, _MOST_EVENTS)) for _ in range(count)]
    return [each.message for each in examples]


def _file_name(task: str) -> str:
    """Return the task without the folder of its file: where the file lies changes no text."""
    return task.rpartition("/")[2]


def vocabulary(settings: TrainingSettings) -> list[str]:
    texts: list[str] = []
    for name in settings.tasks:
        topic = open_topic(name, settings)
        if not isinstance(topic, list):
            texts += topic.words()
            continue
        for each in topic:
            texts += (each.prompt, each.answer, *(step.thought for step in each.steps))
    return texts


class BatchSource:
    """Draw training batches by step, validation batches by cell. only_eval: hold no training texts."""

    def __init__(
        self,
        settings: TrainingSettings,
        tokenizer: "Tokenizer",
        eos_id: int,
        frame: ChatFrame | None = None,
        only_eval: bool = False,
    ) -> None:
        s = settings
        self._settings, self._tokenizer = s, tokenizer
        self._rules = TextRules(s, eos_id, frame)
        if s.follow_ups and frame is not None and not frame.between:
            raise ConfigError(
                "follow_ups need a chat template that writes each message of a conversation alike"
            )
        self._topics: dict[str, Topic] = {name: open_topic(name, s) for name in s.tasks}
        self._orders: dict[str, tuple[int, NDArray[np.int64]]] = {}  # of an epoch, for each task
        self._held: dict[str, list[TextExample]] = {}  # the training texts of a file
        for name, topic in self._topics.items() if not only_eval else ():
            if isinstance(topic, list):
                self._held[name] = _split(topic, held_out=False)
                if not self._held[name]:
                    raise ConfigError(f"{name} has no examples to train on")

    def __reduce__(self) -> tuple[Any, ...]:
        """A process makes its tasks anew: it could not import the class of an own task."""
        return BatchSource, (self._settings, self._tokenizer, self._rules.eos_id, self._rules.frame)

    def has_events(self, name: str) -> bool:
        """Return whether texts of the task have a number of events. Those of a file have none."""
        topic = self._topics[name]
        return not isinstance(topic, list) and getattr(topic, "has_events", True)

    def batch(self, step: int) -> Batch:
        """Make the texts of a step: of each task its share, sorted by length."""
        texts = [
            each
            for index, (name, count) in enumerate(zip(self._topics, self._counts(), strict=True))
            for each in self._texts(name, index, count, step)
        ]
        if self._settings.follow_ups:
            texts = self._with_follow_ups(texts, step)
        whole = self._make_batch(texts)
        return whole.take(np.argsort(whole.num_tokens, kind="stable"))

    def _with_follow_ups(self, messages: list[TextExample], step: int) -> list[TextExample]:
        """Let some messages follow another one. One that continues a story has its state instead."""
        whole = [each for each in messages if not each.given]
        rng = random.Random(f"conversations {self._settings.seed} {step}")
        return [
            replace(each, follows=rng.choice(whole))
            if rng.random() < self._settings.follow_ups and not each.given and each.follows is None
            else each
            for each in messages
        ]

    def _counts(self) -> list[int]:
        shares = self._settings.shares or (1,) * len(self._topics)
        ends = [end * self._settings.batch // sum(shares) for end in accumulate(shares)]
        return [end - start for start, end in pairwise([0, *ends])]

    def eval_batch(self, cells: Iterable[tuple[str, int]], count: int) -> Batch:
        """Make `count` texts that training does not use for each task and number of events, or file."""
        return self._make_batch([each for cell in cells for each in self._eval_examples(*cell, count)])

    def file_or_eval_batch(self, name: str, events: int, count: int) -> Batch:
        """Make a batch like `eval_batch`, but of the first examples of a file: it is a test file."""
        topic = self._topics[name]
        return self._make_batch(
            topic[:count] if isinstance(topic, list) else self._eval_examples(name, events, count)
        )

    def _make_batch(self, examples: list[TextExample]) -> Batch:
        return make_batch(examples, self._tokenizer, self._rules)

    def _eval_examples(self, name: str, events: int, count: int) -> list[TextExample]:
        topic = self._topics[name]
        if isinstance(topic, list):
            held = _split(topic, held_out=True)
            if not held:
                raise ConfigError(f"{name} has too few examples: one of {_HELD_OUT} is for validation")
            return [held[index % len(held)] for index in range(count)]
        rng = random.Random(f"eval {self._settings.seed} {_file_name(name)} {events}")
        make = getattr(topic, "eval_example", topic.example)
        return [make(rng, events) for _ in range(count)]

    def _texts(self, name: str, index: int, count: int, step: int) -> list[TextExample]:
        """Return the texts of a task in a step. Every text that is held comes once in an epoch."""
        if name not in self._held:
            topic = self._topics[name]
            assert not isinstance(topic, list)
            rng = random.Random(f"train {self._settings.seed} {_file_name(name)} {step}")
            most = self._settings.max_events
            return [topic.example(rng, rng.randint(1, most)) for _ in range(count)]
        held = self._held[name]
        places = (divmod(at, len(held)) for at in range(step * count, (step + 1) * count))
        return [held[self._order(name, index, epoch)[place]] for epoch, place in places]

    def _order(self, name: str, index: int, epoch: int) -> NDArray[np.int64]:
        if name not in self._orders or self._orders[name][0] != epoch:
            seeds = np.random.SeedSequence(self._settings.seed, spawn_key=(_TRAIN, index, epoch))
            order = np.random.Generator(np.random.Philox(seeds)).permutation(len(self._held[name]))
            self._orders[name] = (epoch, order)
        return self._orders[name][1]


def _split(examples: list[TextExample], *, held_out: bool) -> list[TextExample]:
    return [each for i, each in enumerate(examples) if (i % _HELD_OUT == _HELD_OUT - 1) == held_out]
