"""Training and validation batches of the tasks.

A batch depends only on (seed, step), so that a run can be resumed exactly. What a task makes is drawn for
every batch, so a run has no texts to make before it starts. Files, and a limited number of examples, are tokenised once,
when the source is opened.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast_thinking.data.general import read_chat
from holdfast_thinking.data.names import FILE_TASKS, TEXT_TASKS, known_tasks
from holdfast_thinking.data.preparation import prepare_all
from holdfast_thinking.data.text_examples import (
    ChatFrame,
    PreparedTexts,
    TextExample,
    TextRules,
    prepare_texts,
)
from holdfast_thinking.model.batch import Batch, join_batches
from holdfast_thinking.settings import TrainingSettings
from holdfast_thinking.tasks.babi import read_babi
from holdfast_thinking.tasks.coin_talk import CoinTalk
from holdfast_thinking.tasks.entities import Entities
from holdfast_thinking.tasks.gsm8k import read_gsm8k
from holdfast_thinking.tasks.outside import Outside
from holdfast_thinking.tasks.parity import Parity
from holdfast_thinking.tasks.phrases import assemble
from holdfast_thinking.tasks.room_talk import RoomTalk
from holdfast_thinking.tasks.rooms import Rooms
from holdfast_thinking.tasks.task import Task, TextTask
from holdfast_thinking.tasks.two_hop import TwoHop
from holdfast_thinking.tasks.variable_talk import VariableTalk
from holdfast_thinking.tasks.variables import Variables

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TRAIN, _EVAL = 0, 1
_MOST_EVENTS = 6  # of a prompt without its answer
_HELD_OUT = 10  # every tenth example of a file is for validation
_READERS: dict[str, Callable[[Path], list[TextExample]]] = {
    "babi": read_babi,
    "gsm8k": read_gsm8k,
    "chat": read_chat,
}
_TEXT_TASKS: dict[str, Callable[[], TextTask]] = {
    "coin-talk": CoinTalk,
    "variable-talk": VariableTalk,
    "outside": Outside,
    "two-hop": TwoHop,
    "rooms": Rooms,
    "room-talk": RoomTalk,
}
Topic = Task | TextTask | list[TextExample]


def open_topics(settings: TrainingSettings) -> dict[str, Topic]:
    """The tasks by name; for a file, its examples."""
    return {name: _open_topic(name, settings) for name in settings.tasks}


def _open_topic(name: str, settings: TrainingSettings) -> Topic:
    kind, _, path = name.partition(":")
    if name == "parity":
        return Parity(settings.long_texts)
    if name == "variables":
        return Variables(settings.variables_thought, settings.long_texts)
    if name == "entities":
        return Entities(continues=settings.carry)
    if name in _TEXT_TASKS:
        return _TEXT_TASKS[name]()
    if kind not in FILE_TASKS or not path:
        raise ConfigError(f"there is no task {name!r}; expected {known_tasks()}")
    return _READERS[kind](Path(path))


def draw_prompts(task: str, count: int, seed: int) -> list[str]:
    """Prompts of a task as chat messages, of a file without those held out."""
    topic = _open_topic(task, TrainingSettings(tasks=(task,)))
    if isinstance(topic, Task):
        raise ConfigError(_no_messages(task))
    rng = random.Random(f"prompts {seed} {task}")
    if isinstance(topic, list):
        examples = _split(topic, held_out=False)
        examples = rng.sample(examples, min(count, len(examples)))
    else:
        examples = [topic.example(rng, rng.randint(1, _MOST_EVENTS)) for _ in range(count)]
    return [each.message for each in examples]


def _no_messages(task: str) -> str:
    return f"{task} has no chat messages; expected {', '.join(TEXT_TASKS)} or a file"


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

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        self._tokens = {
            name: topic.phrases.encoded(encode) for name, topic in topics.items() if isinstance(topic, Task)
        }
        phrases = [name for name, topic in topics.items() if isinstance(topic, Task)]
        if s.follow_ups and phrases:
            raise ConfigError(_no_messages(phrases[0]))
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
                if isinstance(topic, list) or (s.examples is not None and not isinstance(topic, Task))
            }
            if s.follow_ups:
                self._limited = limited
            else:
                self._prepared = prepare_all(limited, tokenizer, self._rules)

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

    def eval_batch(self, name: str, events: int, count: int, index: int = 0) -> Batch:
        """Texts that training does not use: with exactly this number of events, or of a file."""
        topic = self._topics[name]
        if isinstance(topic, Task):
            rng = self._rng(_EVAL, list(self._topics).index(name), events, index)
            return self._draw(name, topic, rng, count, events, events)
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
        """Texts of a task that is written as text."""
        topic = self._topics[name]
        if isinstance(topic, list):
            held = _split(topic, held_out=True)
            if not held:
                raise ConfigError(f"{name} has too few examples: one of {_HELD_OUT} is for validation")
            return [held[index % len(held)] for index in range(count)]
        assert not isinstance(topic, Task)
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
        topic = self._topics[name]
        if isinstance(topic, Task):
            drawn = self._rng(_TRAIN, index, step)
            return self._draw(name, topic, drawn, count, 1, self._settings.max_events)
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
        assert not isinstance(topic, Task | list)
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

    def _draw(
        self, name: str, topic: Task, rng: np.random.Generator, count: int, fewest: int, most: int
    ) -> Batch:
        s = self._settings
        drawn = topic.draw(rng, count, fewest, most, s.form)
        return assemble(drawn, self._tokens[name], s.chunk, s.max_thought, self._eos_id)


def _split(examples: list[TextExample], *, held_out: bool) -> list[TextExample]:
    return [each for i, each in enumerate(examples) if (i % _HELD_OUT == _HELD_OUT - 1) == held_out]
