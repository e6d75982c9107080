"""Questions for `coin` in wordings that training never sees."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.thinking.coin_cases import SIDES, cases
from holdfast import LLM, SamplingParams
from holdfast.models.locate import COIN
from holdfast_thinking.data.words import parse_words, read_words
from holdfast_thinking.tasks import coin_talk
from support import coin_questions as held_out
from support.coin_questions import CoinMessage, CoinQuestion, coin_messages, coin_questions

# The share of the questions that the packaged model answers.
EXPECTED = {"held-out": 0.98, "development": 0.88, "free-1": 0.89, "free-2": 0.88, "free-3": 0.74}
TEMPLATES = parse_words(Path(held_out.__file__).with_name("coin_templates.txt").read_text(encoding="utf-8"))


def test_no_template_is_in_the_training_texts() -> None:
    files = ("coin_asks", "coin_frames", "coin_shapes", "coin_starts", "idle", "outside")
    lists = [read_words(name).lists for name in (*files, "variables", "variable_phrases")]
    trained = {_plain(text) for each in lists for texts in each.values() for text in texts}
    rng, task = random.Random(1), coin_talk.CoinTalk()
    told = " ".join(task.example(rng, 12).prompt for _ in range(400))
    own = {_plain(text) for text in TEMPLATES.HELD_OUT}
    assert len(own) > 90 and not own & trained
    assert not {_plain(text) for text in TEMPLATES.DEVELOPMENT} & trained
    for template in TEMPLATES.HELD_OUT:
        if "{s}" in template:
            assert not any(template.format(s=side) in told for side in coin_talk.SIDES), template


def test_questions_about_more_than_the_side_are_in_other_words() -> None:
    prompts = " ".join(each.prompt for each in coin_questions("free-3"))
    for asked, _, shape in (line.partition("|") for line in (*cases.ASKS, *cases.ASKS_OF_ALL)):
        pattern = re.escape(shape).replace(r"\{N\}", r"\w+").replace(r"\{s\}", "(heads|tails)")
        assert asked.startswith("now") or not re.search(pattern, prompts), shape
    messages = " ".join(each.prompt for name in ("first", "last") for each in coin_messages(name))
    told, rng = read_words("coin_instructions"), random.Random(1)
    drawn = {told.draw(name, rng) for name in ("FIRST", "LAST", "ALONE") for _ in range(5_000)}
    assert len(drawn) > 5_000 and not [each for each in drawn if each.format(s="") in messages]
    sides = {"c": SIDES[0], "C": "Heads"}, {"c": SIDES[1], "C": "Tails"}
    assert not [each for each in told.TEXTS for side in sides if each.format(**side) in messages]


def _plain(text: str) -> str:
    """A template without its case, its bar, its period, and the names of its slots."""
    return re.sub(r"\{\w+\}", "{}", text.replace("|", "").removesuffix(" A:").lower().rstrip(".?!"))


def test_no_answer_is_right_by_itself() -> None:
    prompts = {name: {each.prompt for each in coin_questions(name)} for name in EXPECTED}
    assert [len(each) for each in prompts.values()] == [459, 282, 160, 160, 400]
    assert not prompts["held-out"] & prompts["development"]
    for name in EXPECTED:
        right = Counter(each.accepted for each in coin_questions(name))
        assert min(right["heads"], right["tails"]) > 20 and min(right["yes"], right["no"]) > 10


def test_an_answer_is_right_only_if_it_names_the_side() -> None:
    question = CoinQuestion("", "coin", "", "heads", "tails")
    assert question.is_right(" heads.") and question.is_right(" Yes, heads.")
    assert not question.is_right(" tails.") and not question.is_right(" heads or tails.")
    denied = CoinQuestion("", "yes/no", "", "no", "yes")
    assert denied.is_right(" No, heads.") and not denied.is_right(" I do not know.")
    assert CoinQuestion("", "other", "", "2|two").is_right(" Two.")


def test_a_side_of_a_coin_follows_no_other_instruction() -> None:
    assert [len(coin_messages(each)) for each in ("first", "last")] == [30, 30]
    message = CoinMessage("last", "", ("anna",))
    assert message.is_followed("Anna has a coin.") and not message.is_followed("Tim has a coin.")
    assert not CoinMessage("last", "", ()).is_followed("Yes, it is tails up.")


@pytest.mark.long
@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_coin_answers_questions_in_new_wordings(name: str, expected: float) -> None:
    llm, asked = LLM(COIN, max_num_seqs=32), coin_questions(name)
    params = SamplingParams(max_tokens=12, temperature=0, deterministic=True)
    results = llm.generate([each.prompt for each in asked], params)
    right = [each.is_right(result.text) for each, result in zip(asked, results, strict=True)]
    shares = {
        kind: sum(ok for ok, each in zip(right, asked, strict=True) if each.kind == kind)
        for kind in Counter(each.kind for each in asked)
    }
    assert sum(right) / len(right) >= expected, shares
