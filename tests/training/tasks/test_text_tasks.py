"""Tasks written as text: thoughts lead to the answers, and no thought depends on later words."""

import random
import re

import pytest

from holdfast.training.tasks.coin_talk import ASKS, SIDES, YES_NO, CoinTalk
from holdfast.training.tasks.entities import Entities
from holdfast.training.tasks.general import eval_prompts, training_prompts
from holdfast.training.tasks.idle_talk import OUTSIDE, Outside
from holdfast.training.tasks.task import TextTask
from holdfast.training.tasks.text_examples import TextExample
from holdfast.training.tasks.two_hop import TwoHop
from holdfast.training.tasks.variable_talk import VariableTalk


def examples(task: TextTask, count: int = 300, most: int = 9) -> list[TextExample]:
    rng = random.Random(5)
    return [task.example(rng, rng.randint(1, most)) for _ in range(count)]


@pytest.mark.parametrize(
    "task", [Entities(), TwoHop(), CoinTalk(), VariableTalk(), Outside()], ids=lambda t: t.name
)
def test_steps_are_in_order_and_inside_the_prompt(task: TextTask) -> None:
    for each in examples(task, 100):
        places = [step.settled_at for step in each.steps]
        assert places == sorted(places) and all(0 <= at < len(each.prompt) for at in places), each
        assert not any(bad in each.prompt for bad in "{}|"), each.prompt
        assert "  " not in each.prompt, each.prompt


def test_entity_thoughts_answer_every_question() -> None:
    """The last clause with a thing, a box or a person has the answer."""
    for each in examples(Entities()):
        clauses = [clause.split() for step in each.steps for clause in step.thought.split(",")]
        question = each.prompt[each.prompt.rindex(". ") + 2 :].removesuffix("? A:")
        answer = each.answer.strip(" .")
        if found := re.fullmatch(r"What is in the (\w+) box", question):
            last = [clause for clause in clauses if clause[:2] == [found[1], "box"]][-1]
            assert " and ".join(last[2:]) == answer, each
        else:
            name = question.removeprefix("Where is ").removeprefix("the ")
            last = [clause for clause in clauses if name in clause][-1]
            assert answer == (last[1] if last[0] == name else " ".join(last[:2])), each


def test_entity_texts_repeat_no_thought_without_a_cause() -> None:
    """Distractors have no thought: fewer thoughts than sentences."""
    told = examples(Entities())
    assert sum(len(each.steps) for each in told) < sum(each.prompt.count(".") for each in told)


def test_coin_talk_thoughts_answer_every_question() -> None:
    kinds = set()
    for each in examples(CoinTalk()):
        if not each.steps:
            assert each.answer == " I do not know."
            continue
        side = each.steps[-1].reminder.strip()
        assert side in SIDES and each.answer.strip(" .").endswith(side), each
        asked = re.search(r"(heads|tails)[^.?]*\?[^?]*$", each.prompt)
        if each.answer.startswith((" Yes", " No")):
            assert asked is not None and each.answer.startswith(" Yes") == (asked[1] == side), each
        kinds.add(each.answer.split()[0])
    assert kinds == {"heads.", "tails.", "Yes,", "No,"}


def test_coin_talk_flips_are_those_of_its_words() -> None:
    """A parser of its own for the plainest words."""
    for each in examples(CoinTalk(), 200):
        state = each.steps[0].reminder.strip() if each.steps else None
        for before, step in zip(each.steps, each.steps[1:], strict=False):
            said = each.prompt[before.settled_at + 1 : step.settled_at + 1].rpartition(". ")[2]
            if re.search(
                r"\b(doesn't|does not|didn't|never|refuse|leaves|looks|not|nobody|neither|Nobody)\b", said
            ):
                assert step.thought.strip() == state, (said, each.prompt)
            elif re.fullmatch(r"\w+ (flips|tosses|inverts|reverses) (it|the \w+)", said):
                assert step.thought.strip() != state, (said, each.prompt)
            state = step.thought.strip()


def test_variable_talk_thoughts_are_right() -> None:
    for each in examples(VariableTalk()):
        known: dict[str, int] = {}
        for number, step in enumerate(each.steps):
            words = step.thought.split()
            if number:
                left, sign, right, *words = words
                assert int(words[1]) == int(left) + (1 if sign == "+" else -1) * int(right), each
            pairs = dict(zip(words[::2], map(int, words[1::2]), strict=True))
            changed = {name for name, value in pairs.items() if known.get(name) != value}
            assert len(changed) <= 1 or not known, each
            assert list(pairs)[bool(number) :] == sorted(list(pairs)[bool(number) :])
            known = pairs
            assert all(0 <= value <= 9 for value in known.values())
        answer = each.answer.strip(" .")
        if answer != "I do not know":
            asked = re.findall(r"\b([a-z])\b", each.prompt[each.steps[-1].settled_at :])
            assert int(answer[-1]) in {known[name] for name in asked if name in known}, each


def test_two_hop_text_never_says_the_answer() -> None:
    task, rng = TwoHop(), random.Random(3)
    for each in examples(task):
        assert each.answer.strip(" .") not in each.prompt
    new = 0
    for _ in range(200):
        asked = task.eval_example(rng, 1)
        assert len(asked.prompt.split()) > 8
        town = next(town for town in task.towns if town in asked.prompt)
        new += town in task.new_towns
    assert 60 < new < 140
    trained = " ".join(
        each.prompt for each in examples(task, 2000) if " in " in each.prompt and len(each.prompt) > 60
    )
    assert not any(f" in {town}." in trained for town in task.new_towns)


def test_other_prompts_are_answered_with_what_is_known() -> None:
    assert {each.answer for each in examples(Outside())} == {OUTSIDE}


def test_general_prompts_for_evaluation_are_not_trained_on() -> None:
    asked = eval_prompts()
    assert len(asked) == len(set(asked)) == 200
    assert not set(asked) & set(training_prompts(10_000, 0))


def test_question_templates_are_many() -> None:
    assert len(set(ASKS)) >= 30 and len(set(YES_NO)) >= 20
