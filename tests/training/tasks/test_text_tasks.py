"""Tasks written as text: thoughts lead to the answers, and no thought depends on later words."""

import random
import re
from dataclasses import replace

import pytest

from benchmarks.thinking.coin_cases import SIDES, CaseStory, CoinCases
from benchmarks.thinking.entities import Entities
from benchmarks.thinking.eval import eval_prompts
from benchmarks.thinking.two_hop import TwoHop
from holdfast_thinking.data.samples import training_prompts
from holdfast_thinking.data.text_examples import TextExample, TextTask, ThoughtStep
from holdfast_thinking.settings import TrainingSettings
from holdfast_thinking.tasks.coin_talk import CoinTalk
from holdfast_thinking.tasks.outside import Outside
from holdfast_thinking.tasks.parity import Parity
from holdfast_thinking.tasks.typed import typed
from holdfast_thinking.tasks.variable_talk import VariableTalk
from holdfast_thinking.tasks.variables import Variables

SETTINGS = TrainingSettings(chunk=16, max_thought=32)
OWN = (CoinCases(SETTINGS), Entities(SETTINGS), Entities(replace(SETTINGS, carry=True)), TwoHop(SETTINGS))


def examples(task: TextTask, count: int = 300, most: int = 9) -> list[TextExample]:
    rng = random.Random(5)
    return [task.example(rng, rng.randint(1, most)) for _ in range(count)]


@pytest.mark.parametrize(
    "task",
    [CoinTalk(), VariableTalk(), Outside(), Parity(), Variables(any_number=True), *OWN],
    ids=lambda task: type(task).__name__,
)
def test_steps_are_in_order_and_inside_the_prompt(task: TextTask) -> None:
    for each in examples(task, 100):
        places = [step.settled_at for step in each.steps]
        assert places == sorted(places) and all(0 <= at < len(each.prompt) for at in places), each
        assert not any(bad in each.prompt for bad in "{}|"), each.prompt
        assert "  " not in each.prompt, each.prompt


@pytest.mark.parametrize("num_coins", [1, 3])
def test_last_thought_about_coins_has_the_answer(num_coins: int) -> None:
    rng = random.Random(2)
    for _ in range(200):
        story = CaseStory(rng, num_coins)
        for _ in range(4):
            story.event()
        first, last = ((step.state or step.thought).split() for step in story.steps[:: len(story.steps) - 1])
        coin = rng.choice(story.coins)
        assert (
            last[-2 * num_coins :][-1 if num_coins == 1 else last[-2 * num_coins :].index(coin.key) + 1]
            == (SIDES[coin.side])
        )
        now, start = story.ask("now"), story.ask("start")
        assert now.answer.strip(" .") in last and (num_coins > 1 or start.answer.strip(" .") == first[0])


def test_people_who_flip_a_coin_are_counted() -> None:
    story = CaseStory(random.Random(1), 1)
    story.coins[0].side = story.coins[0].start = 0
    story.tell(["Ann"], times=2)
    story.tell(["Bob"])
    story.tell(["Eve"], times=0)
    answers = {
        "first": "Ann",
        "last": "Bob",
        "times": "3",
        "people": "2",
        "even": "No",
        "not": "Eve",
        "start": "heads",
    }
    assert {kind: story.ask(kind).answer for kind in answers} == {
        k: f" {said}." for k, said in answers.items()
    }
    assert story.ask("now").answer == " tails."


def test_thoughts_stay_at_their_words_however_they_are_typed() -> None:
    told = TextExample(
        "Bob's coin is heads up. He flips it. Is it heads? A:", " No, tails.", (ThoughtStep(34, " tails"),)
    )
    rng, seen = random.Random(3), set[str]()
    for _ in range(400):
        found = typed(told, rng)
        read = found.prompt[: found.steps[0].settled_at + 1].lower()
        assert found.prompt.endswith(" A:") and abs(len(read.split("? ")[-1]) - 35) < 6, found
        seen.add(found.prompt)
    assert told.prompt in seen and told.prompt.replace("A:", "").upper() in {each[:-2] for each in seen}
    assert "Is it heads? Bob's coin is heads up. He flips it. A:" in seen and len(seen) > 50


def test_variable_talk_thoughts_are_right() -> None:
    rng = random.Random(5)
    for each in [VariableTalk().eval_example(rng, rng.randint(0, 9)) for _ in range(300)]:
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
