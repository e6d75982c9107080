"""Tasks written as text: thoughts lead to the answers, and no thought depends on later words."""

import random
import re
from dataclasses import replace

import pytest

from benchmarks.thinking.entities import Entities
from benchmarks.thinking.eval import eval_prompts
from benchmarks.thinking.two_hop import TwoHop
from holdfast_thinking.data.samples import training_prompts
from holdfast_thinking.data.text_examples import TextExample, TextTask
from holdfast_thinking.settings import TrainingSettings
from holdfast_thinking.tasks.coin_talk import CoinTalk
from holdfast_thinking.tasks.outside import Outside
from holdfast_thinking.tasks.parity import Parity
from holdfast_thinking.tasks.variable_talk import VariableTalk
from holdfast_thinking.tasks.variables import Variables

SETTINGS = TrainingSettings(chunk=16, max_thought=32)
OWN = (Entities(SETTINGS), Entities(replace(SETTINGS, carry=True)), TwoHop(SETTINGS))


def examples(task: TextTask, count: int = 300, most: int = 9) -> list[TextExample]:
    rng = random.Random(5)
    return [task.example(rng, rng.randint(1, most)) for _ in range(count)]


@pytest.mark.parametrize(
    "task",
    [CoinTalk(), VariableTalk(), Outside(), Parity(), Variables(), *OWN],
    ids=lambda task: type(task).__name__,
)
def test_steps_are_in_order_and_inside_the_prompt(task: TextTask) -> None:
    for each in examples(task, 100):
        places = [step.settled_at for step in each.steps]
        assert places == sorted(places) and all(0 <= at < len(each.prompt) for at in places), each
        assert not any(bad in each.prompt for bad in "{}|"), each.prompt
        assert "  " not in each.prompt, each.prompt


def test_variable_talk_thoughts_are_right() -> None:
    for each in examples(VariableTalk()):
        known: dict[str, int] = {}
        named: list[str] = []
        for step in each.steps:
            words = step.thought.split()
            work = words[:4] if len(words) > 2 and words[2] in "+-" else []
            words = words[len(work) :]
            pairs = dict(zip(words[::2], map(int, words[1::2]), strict=True))
            if work:
                name, left, sign, right = work
                assert pairs[name] == int(left) + (1 if sign == "+" else -1) * int(right), each
            changed = {name for name, value in pairs.items() if known.get(name) != value}
            if len(changed) == 2 and known:  # two values are swapped
                one, other = changed
                assert (known[one], known[other]) == (pairs[other], pairs[one]), each
            assert len(changed) <= 2 or not known, each
            named += [name for name in pairs if name not in named]
            assert list(pairs) == named, each
            known = pairs
            assert all(0 <= value <= 9 for value in known.values())
        answer = each.answer.strip(" .")
        if answer != "I do not know":
            asked = re.findall(r"\b([A-Za-z]+)\b", each.prompt[each.steps[-1].settled_at :])
            asked += [name.removesuffix("s") for name in asked]  # "what is ages value"
            assert int(answer[-1]) in {known[name] for name in asked if name in known}, each


def test_general_prompts_for_evaluation_are_not_trained_on() -> None:
    asked = eval_prompts()
    assert len(asked) == len(set(asked)) == 200
    assert not set(asked) & set(training_prompts(10_000, 0))
