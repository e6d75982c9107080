"""Questions for `coin` in wordings that training never sees."""

import random
import re
from collections import Counter

import pytest

from holdfast import LLM, SamplingParams
from holdfast.models.locate import COIN
from holdfast_thinking.data.words import read_words
from holdfast_thinking.tasks import coin_talk
from support import coin_dev_questions as development
from support import coin_questions as held_out
from support.coin_free_questions import coin_free_questions
from support.coin_questions import CoinQuestion

EXPECTED = 0.95  # the share of the 500 questions that the packaged model answers
EXPECTED_DEVELOPMENT = 0.86
EXPECTED_FREE = {1: 0.92, 2: 0.88}


def test_no_template_is_in_the_training_texts() -> None:
    files = ("coin_asks", "coin_frames", "coin_shapes", "coin_starts", "idle", "outside")
    lists = [read_words(name).lists for name in (*files, "variables", "variable_phrases")]
    trained = {_plain(text) for each in lists for texts in each.values() for text in texts}
    rng, task = random.Random(1), coin_talk.CoinTalk()
    told = " ".join(task.example(rng, 12).prompt for _ in range(400))
    own = {_plain(text) for text in _texts(held_out) if " " in text}
    assert len(own) > 90 and not own & trained
    assert not {_plain(text) for text in _texts(development) if " " in text} & trained
    for template in (*held_out.STARTS, *held_out.ASKS):
        assert not any(template.format(s=side) in told for side in held_out.SIDES), template


def _plain(text: str) -> str:
    """A template without its case, its bar, its period, and the names of its slots."""
    return re.sub(r"\{\w+\}", "{}", text.replace("|", "").removesuffix(" A:").lower().rstrip(".?!"))


def _texts(module: object) -> set[str]:
    """All texts in the lists of a module."""
    lists = [value for value in vars(module).values() if isinstance(value, tuple)]
    return {text for each in lists for text in each if isinstance(text, str)}


def test_questions_are_500_of_all_kinds_and_always_the_same() -> None:
    asked = held_out.coin_questions()
    assert asked == held_out.coin_questions() and len(asked) == 500
    assert len({each.prompt for each in asked}) > 440
    kinds = Counter(each.kind for each in asked)
    assert kinds == {"coin": 200, "yes/no": 100, "idle": 50, "variables": 100, "outside": 50}
    right = Counter(each.accepted for each in asked if each.kind == "coin")
    assert min(right["heads"], right["tails"]) > 80  # no answer is right by itself


def test_an_answer_is_right_only_if_it_names_the_side() -> None:
    question = held_out.CoinQuestion("coin", "", "heads", "tails")
    assert question.is_right(" heads.") and question.is_right(" Yes, heads.")
    assert not question.is_right(" tails.") and not question.is_right(" heads or tails.")
    denied = held_out.CoinQuestion("yes/no", "", "no", "yes")
    assert denied.is_right(" No, heads.") and not denied.is_right(" I do not know.")


def test_development_questions_are_300_and_balanced() -> None:
    asked = development.coin_dev_questions()
    assert asked == development.coin_dev_questions() and len(asked) == 300
    assert len({each.prompt for each in asked}) > 270
    assert not {each.prompt for each in asked} & {each.prompt for each in held_out.coin_questions()}
    right = Counter(each.accepted for each in asked)
    assert min(right["heads"], right["tails"]) > 50 and min(right["yes"], right["no"]) > 20


@pytest.mark.parametrize("part", [1, 2])
def test_free_questions_are_160_and_balanced(part: int) -> None:
    asked = coin_free_questions(part)
    assert len({each.prompt for each in asked}) == 160 and all(each.prompt.endswith(" A:") for each in asked)
    assert Counter(each.kind for each in asked) == {"coin": 60, "yes/no": 40, "variables": 40, "outside": 20}
    right = Counter(each.accepted for each in asked)
    assert min(right["heads"], right["tails"]) > 25 and min(right["yes"], right["no"]) > 15


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (held_out.coin_questions(), EXPECTED),
        (development.coin_dev_questions(), EXPECTED_DEVELOPMENT),
        *((coin_free_questions(part), share) for part, share in EXPECTED_FREE.items()),
    ],
    ids=["held-out", "development", "free-1", "free-2"],
)
def test_coin_answers_questions_in_new_wordings(asked: list[CoinQuestion], expected: float) -> None:
    llm = LLM(COIN, max_num_seqs=32)
    params = SamplingParams(max_tokens=12, temperature=0, deterministic=True)
    results = llm.generate([each.prompt for each in asked], params)
    right = [each.is_right(result.text) for each, result in zip(asked, results, strict=True)]
    shares = {
        kind: sum(ok for ok, each in zip(right, asked, strict=True) if each.kind == kind)
        for kind in Counter(each.kind for each in asked)
    }
    assert sum(right) / len(right) >= expected, shares
