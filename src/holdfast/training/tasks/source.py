"""Training and validation batches of the tasks.

A batch depends only on (seed, step), so that a run can be resumed exactly.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from holdfast.errors import ConfigError
from holdfast.training.batch import Batch, join_batches
from holdfast.training.settings import TrainingSettings
from holdfast.training.tasks.babi import read_babi
from holdfast.training.tasks.gsm8k import read_gsm8k
from holdfast.training.tasks.parity import Parity
from holdfast.training.tasks.phrases import assemble
from holdfast.training.tasks.task import Task
from holdfast.training.tasks.text_examples import TextExample, batch_texts
from holdfast.training.tasks.variables import Variables

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TRAIN, _EVAL = 0, 1
_HELD_OUT = 10  # every tenth example of a file is for validation
Topic = Task | list[TextExample]


def open_topics(settings: TrainingSettings) -> dict[str, Topic]:
    """The tasks by name; for a file, its examples."""
    return {name: _open_topic(name, settings) for name in settings.tasks}


def _open_topic(name: str, settings: TrainingSettings) -> Topic:
    kind, _, path = name.partition(":")
    if name == "parity":
        return Parity(settings.long_texts)
    if name == "variables":
        return Variables(settings.variables_thought, settings.long_texts)
    readers = {"babi": read_babi, "gsm8k": read_gsm8k}
    if kind not in readers or not path:
        raise ConfigError(f"there is no task {name!r}; expected parity, variables, babi:FILE or gsm8k:FILE")
    if settings.form in ("cot", "words"):
        raise ConfigError(f"{kind} has no chain of thought as text; train it with the form thinking or none")
    return readers[kind](Path(path))


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
    """Draws training batches by step, and validation batches by task and number of events."""

    def __init__(
        self, settings: TrainingSettings, topics: dict[str, Topic], tokenizer: "Tokenizer", eos_id: int
    ) -> None:
        self._settings, self._topics, self._tokenizer, self._eos_id = settings, topics, tokenizer, eos_id

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        self._tokens = {
            name: topic.phrases.encoded(encode)
            for name, topic in topics.items()
            if not isinstance(topic, list)
        }

    def batch(self, step: int) -> Batch:
        """The texts of a step: equally many of each task, sorted by length."""
        names = list(self._topics)
        share, more = divmod(self._settings.batch, len(names))
        batches = []
        for index, name in enumerate(names):
            count = share + (index < more)
            if count:
                rng = self._rng(_TRAIN, index, step)
                batches.append(self._draw(name, rng, count, 1, self._settings.max_events, held_out=False))
        whole = join_batches(batches)
        return whole.take(np.argsort(whole.num_tokens, kind="stable"))

    def eval_batch(self, name: str, events: int, count: int, index: int = 0) -> Batch:
        """Texts with exactly this number of events that training does not use."""
        rng = self._rng(_EVAL, list(self._topics).index(name), events, index)
        return self._draw(name, rng, count, events, events, held_out=True)

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(np.random.SeedSequence(self._settings.seed, spawn_key=key))
        )

    def _draw(
        self, name: str, rng: np.random.Generator, count: int, fewest: int, most: int, held_out: bool
    ) -> Batch:
        s, topic = self._settings, self._topics[name]
        if isinstance(topic, list):
            indices = [i for i in range(len(topic)) if (i % _HELD_OUT == _HELD_OUT - 1) == held_out]
            if not indices:
                raise ConfigError(f"{name} has too few examples: one of {_HELD_OUT} is for validation")
            chosen = [topic[i] for i in rng.choice(indices, count)]
            batch = batch_texts(chosen, self._tokenizer, s.chunk, s.max_thought, self._eos_id)
            if s.form != "thinking":
                batch = Batch(
                    batch.token_ids, batch.num_prompt, batch.num_tokens, np.full_like(batch.thoughts, -1)
                )
            return batch
        drawn = topic.draw(rng, count, fewest, most, s.form)
        return assemble(drawn, self._tokens[name], s.chunk, s.max_thought, self._eos_id)
