"""Training and validation batches of the tasks.

A batch depends only on (seed, step), so that a run can be resumed exactly. What a task makes is drawn for
every batch, so a run has no texts to make before it starts. Files, and a limited number of examples, are tokenised once,
when the source is opened.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast_thinking.data.jsonl import read_chat, read_thoughts
from holdfast_thinking.data.names import is_own_task, require_tasks
from holdfast_thinking.data.preparation import prepare_all
from holdfast_thinking.data.text_examples import (
    ChatFrame,
    PreparedTexts,
    TextExample,
    TextRules,
    TextTask,
    prepare_texts,
)
from holdfast_thinking.model.batch import Batch, join_batches
from holdfast_thinking.settings import TrainingSettings
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
    "variables": lambda settings: Variables(settings.variables_thought, settings.long_texts),
    "coin-talk": lambda settings: CoinTalk(),
    "variable-talk": lambda settings: VariableTalk(),
    "outside": lambda settings: Outside(),
}
Topic = TextTask | list[TextExample]


def open_topics(settings: TrainingSettings) -> dict[str, Topic]:
    """The tasks by name; for a file, its examples."""
    return {name: _open_topic(name, settings) for name in settings.tasks}


def _open_topic(name: str, settings: TrainingSettings) -> Topic:
    require_tasks([name])
    if name in _TASKS:
        return _TASKS[name](settings)
    if is_own_task(name):
        return _load_task(name)(settings)
    kind, _, path = name.partition(":")
    return _READERS[kind](Path(path))


def _load_task(name: str) -> Callable[[TrainingSettings], TextTask]:
    """Return the class of a task in a Python file, which is run."""
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
    topic = _open_topic(task, TrainingSettings(tasks=(task,)))
    rng = random.Random(f"prompts {seed} {task}")
    if isinstance(topic, list):
        examples = _split(topic, held_out=False)
        examples = rng.sample(examples, min(count, len(examples)))
    else:
        examples = [topic.example(rng, rng.randint(1, _MOST_EVENTS)) for _ in range(count)]
    return [each.message for each in examples]


def topic_texts(topics: dict[str, Topic]) -> list[str]:
    """The texts a tokenizer for these topics is built from."""
    texts: list[str] = []
    for topic in topics.values():
        if isinstance(topic, list):
            texts += [
                text
                for each in topic
                for text in (each.prompt, each.answer, *(s.thought for s in each.steps))
            ]
        else:
            texts += topic.words()
    return texts


class BatchSource:
    """Draws training batches by step, and validation batches by task and number of events.

    only_eval: read no training texts.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        topics: dict[str, Topic],
        tokenizer: "Tokenizer",
        eos_id: int,
        frame: ChatFrame | None = None,
        only_eval: bool = False,
    ) -> None:
        s = settings
        self._settings, self._topics, self._tokenizer, self._eos_id = s, topics, tokenizer, eos_id
        self._rules = TextRules(
            s.form,
            s.chunk,
            s.max_thought,
            eos_id,
            frame,
            s.thought_delay,
            s.carry,
            s.thinks_answer,
        )

        if s.follow_ups and frame is not None and not frame.between:
            raise ConfigError(
                "follow_ups need a chat template that writes each message of a conversation alike"
            )
        self._prepared: dict[str, PreparedTexts] = {}
        self._limited: dict[str, list[TextExample]] = {}
        self._orders: dict[str, tuple[int, NDArray[np.int64]]] = {}  # of an epoch, for each task
        if not only_eval:
            limited = {
                name: self._examples(name, topic)
                for name, topic in topics.items()
                if isinstance(topic, list) or s.examples is not None
            }
            if s.follow_ups:
                self._limited = limited
            else:
                self._prepared = prepare_all(limited, tokenizer, self._rules)

    def __getstate__(self) -> dict[str, Any]:
        """A process makes its tasks anew: it could not import the class of an own task."""
        files = {name: topic if isinstance(topic, list) else None for name, topic in self._topics.items()}
        return self.__dict__ | {"_topics": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, topic in state["_topics"].items():
            self._topics[name] = _open_topic(name, self._settings) if topic is None else topic

    def has_events(self, name: str) -> bool:
        """Return whether texts of the task have a number of events. Those of a file have none."""
        topic = self._topics[name]
        return not isinstance(topic, list) and getattr(topic, "has_events", True)

    def batch(self, step: int) -> Batch:
        """The texts of a step: of each task its share, sorted by length."""
        drawn = [
            (name, index, count)
            for index, (name, count) in enumerate(zip(self._topics, self._counts(), strict=True))
            if count
        ]
        if self._settings.follow_ups:
            whole = self._conversations(drawn, step)
        else:
            whole = join_batches([self._training_batch(*each, step) for each in drawn])
        return whole.take(np.argsort(whole.num_tokens, kind="stable"))

    def _conversations(self, drawn: list[tuple[str, int, int]], step: int) -> Batch:
        """The texts of a step, some of which follow another one of them. One that continues a story has its
        state instead."""
        messages = [each for name, index, count in drawn for each in self._texts(name, index, count, step)]
        whole = [each for each in messages if not each.given]
        rng = random.Random(f"conversations {self._settings.seed} {step}")
        texts = [
            replace(each, follows=rng.choice(whole))
            if rng.random() < self._settings.follow_ups and not each.given
            else each
            for each in messages
        ]
        return self._prepare(texts).batch(range(len(texts)))

    def _counts(self) -> list[int]:
        """The number of texts of each task in a batch."""
        shares = self._settings.shares or (1,) * len(self._topics)
        ends = [
            sum(shares[: index + 1]) * self._settings.batch // sum(shares) for index in range(len(shares))
        ]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]

    def eval_batch(self, name: str, events: int, count: int) -> Batch:
        """Texts that training does not use: with exactly this number of events, or of a file."""
        examples = self.eval_examples(name, events, count)
        return self._prepare(examples).batch(range(len(examples)))

    def file_or_eval_batch(self, name: str, events: int, count: int) -> Batch:
        """Like `eval_batch`, with the first examples of a file: it is a test file."""
        topic = self._topics[name]
        if not isinstance(topic, list):
            return self.eval_batch(name, events, count)
        examples = topic[:count]
        return self._prepare(examples).batch(range(len(examples)))

    def eval_examples(self, name: str, events: int, count: int) -> list[TextExample]:
        """The same as examples."""
        topic = self._topics[name]
        if isinstance(topic, list):
            held = _split(topic, held_out=True)
            if not held:
                raise ConfigError(f"{name} has too few examples: one of {_HELD_OUT} is for validation")
            return [held[index % len(held)] for index in range(count)]
        rng = random.Random(f"eval {self._settings.seed} {name} {events}")
        make = getattr(topic, "eval_example", topic.example)
        return [make(rng, events) for _ in range(count)]

    def _examples(self, name: str, topic: TextTask | list[TextExample]) -> list[TextExample]:
        """All training texts of a file, or of a task with a limited number of them."""
        s = self._settings
        if not isinstance(topic, list):
            assert s.examples is not None
            return self._make(topic, random.Random(f"train {s.seed} {name}"), s.examples)
        examples = _split(topic, held_out=False)[: s.examples]
        if not examples:
            raise ConfigError(f"{name} has no examples to train on")
        return examples

    def _make(self, task: TextTask, rng: random.Random, count: int) -> list[TextExample]:
        return [task.example(rng, rng.randint(1, self._settings.max_events)) for _ in range(count)]

    def _prepare(self, examples: list[TextExample]) -> PreparedTexts:
        return prepare_texts(examples, self._tokenizer, self._rules)

    def _training_batch(self, name: str, index: int, count: int, step: int) -> Batch:
        if name not in self._prepared:
            return self._prepare(self._texts(name, index, count, step)).batch(range(count))
        prepared = self._prepared[name]
        return prepared.batch(self._choose(name, index, count, step, len(prepared)))

    def _texts(self, name: str, index: int, count: int, step: int) -> list[TextExample]:
        """The texts of a task in a step."""
        if name in self._limited:
            held = self._limited[name]
            return [held[at] for at in self._choose(name, index, count, step, len(held))]
        topic = self._topics[name]
        assert not isinstance(topic, list)
        return self._make(topic, random.Random(f"train {self._settings.seed} {name} {step}"), count)

    def _choose(self, name: str, index: int, count: int, step: int, size: int) -> NDArray[np.int64]:
        """Which texts of a file a step has: every text once in an epoch."""
        first = np.arange(step * count, (step + 1) * count)
        epochs, places = first // size, first % size
        chosen = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            order = self._order(name, index, int(epoch), size)
            chosen[epochs == epoch] = order[places[epochs == epoch]]
        return chosen

    def _order(self, name: str, index: int, epoch: int, size: int) -> NDArray[np.int64]:
        """The texts of a task in the order of an epoch; that of the last one asked for is kept."""
        if name not in self._orders or self._orders[name][0] != epoch:
            self._orders[name] = (epoch, self._rng(_TRAIN, index, epoch).permutation(size))
        return self._orders[name][1]

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(np.random.SeedSequence(self._settings.seed, spawn_key=key))
        )


def _split(examples: list[TextExample], *, held_out: bool) -> list[TextExample]:
    return [each for i, each in enumerate(examples) if (i % _HELD_OUT == _HELD_OUT - 1) == held_out]
