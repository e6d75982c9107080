"""Every task draws the texts that were recorded: the order of a phrase list decides them, and so does
each draw. After a change that is meant to change texts:

    PYTHONPATH=src python tests/training/tasks/test_recorded_texts.py
"""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.thinking.eval import eval_prompts
from holdfast_thinking.data.samples import training_prompts
from holdfast_thinking.data.source import open_topic
from holdfast_thinking.data.text_examples import TextTask
from holdfast_thinking.model.tokenizer import build_tokenizer
from holdfast_thinking.settings import TASKS, TrainingSettings

RECORDED = Path(__file__).with_name("recorded_texts.json")
NUM_TEXTS, MAX_EVENTS = 1000, 12
OWN = Path(__file__).parents[3] / "benchmarks" / "thinking"
CLASSES = {"entities": "Entities", "two_hop": "TwoHop"}
CARRIED = "entities, carried"
NAMES = (*TASKS, *CLASSES, CARRIED, "general")


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_those_recorded(name: str) -> None:
    assert digests(name) == json.loads(RECORDED.read_text())[name]


def digests(name: str) -> dict[str, str]:
    """SHA-256 over the vocabulary of a task, and over its texts with their thoughts."""
    if name == "general":
        return {"training": digest(training_prompts(NUM_TEXTS, 5)), "evaluation": digest(eval_prompts())}
    task = name.partition(",")[0]
    if task in CLASSES:
        task = f"{OWN / task}.py:{CLASSES[task]}"
    topic = open_topic(task, TrainingSettings(tasks=(task,), carry=name == CARRIED))
    assert not isinstance(topic, list)
    tokens = sorted(build_tokenizer(topic.words()).get_vocab())
    return {"vocabulary": digest(tokens), "texts": digest(list(examples(topic)))}


def digest(values: list[object] | list[str]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def examples(task: TextTask) -> Iterator[object]:
    """Texts for training and, where a task has others for evaluation, as many of those."""
    rng = random.Random(5)
    makers = (task.example, getattr(task, "eval_example", task.example))
    for number in range(NUM_TEXTS):
        one = makers[number % 2](rng, 1 + number // 2 % MAX_EVENTS)
        steps = [[each.settled_at, each.thought, each.state, each.at_once] for each in one.steps]
        yield [one.prompt, one.answer, one.given, steps]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: digests(name) for name in NAMES}, indent=2) + "\n")
