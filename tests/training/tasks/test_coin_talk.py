"""Coins in free wording: the side after every event, re-derived from marks and from plain words."""

import random
import re

from holdfast_thinking.grammar import words
from holdfast_thinking.grammar.coin_phrases import MARKS, unmarked
from holdfast_thinking.grammar.verbs import phrase
from holdfast_thinking.tasks.coin_talk import UNKNOWN, CoinStory, tell

SIDES = ("heads", "tails")
DOWN = (
    r"\b((?<!write )down|bottom|under\w*|hidden|below|(facing|faces|touching) the table|out of sight"
    r"|not (visible|showing|see))\b"
)


def stories(count: int, most: int = 9) -> list[CoinStory]:
    rng = random.Random(5)
    return [tell(rng, rng.randint(1, most)) for _ in range(count)]


def sides_of(told: CoinStory) -> list[tuple[int, str]]:
    """(characters read, side) after every mark from the start on: one pass over the marked text."""
    side: int | None = None
    read, found = 0, []
    for character in told.marked:
        if character not in MARKS:
            read += 1
            continue
        match character:
            case "\x07":
                side = told.first
            case "\x01" if side is not None:
                side = (side + 1) % 2
            case "\x03":
                side = 0
            case "\x04":
                side = 1
            case "\x05":
                side = 1 if side == 0 else side
            case "\x06":
                side = 0 if side == 1 else side
        if side is not None:
            found.append((read, SIDES[side]))
    return found


def test_thoughts_are_the_sides_after_the_marks() -> None:
    for told in stories(600):
        expected = sides_of(told)
        said = [(s.settled_at + 1, (s.thought or s.state).strip()) for s in told.example.steps]
        assert said == expected, told
        thoughts = [step.thought.strip() for step in told.example.steps]
        first = ["" if told.first is not None else expected[0][1]] if expected else []
        assert thoughts == first + [side for _, side in expected[1:]], told
        assert told.example.prompt.lower() == unmarked(told.marked).lower()


def test_answers_follow_from_the_last_side() -> None:
    kinds = set()
    for told in stories(600):
        found, answer = sides_of(told), told.example.answer
        if not found:
            assert answer == UNKNOWN
            continue
        side = found[-1][1]
        question = told.question.lower()
        is_down = bool(re.search(DOWN, question))
        if answer.startswith((" Yes", " No")):
            asked = re.findall("heads|tails", question)[-1]
            assert answer == f" {'Yes' if (asked == side) != is_down else 'No'}, {side}.", told
        elif is_down:
            assert answer == f" {SIDES[side == 'heads']}.", told
        else:
            assert answer == f" {side}.", told
        kinds.add(answer.split()[0])
    assert kinds == {"heads.", "tails.", "Yes,", "No,"}


def test_a_verb_without_an_object_is_decided_by_what_follows() -> None:
    """ "Bob flips" may go on with "it": the mark is at the punctuation or the word after it."""
    marks, told = "".join(MARKS), " ".join(each.marked for each in stories(4000))
    person = rf"\b(?:{'|'.join(words.NAMES)})"
    assert not re.search(rf"{person}(: | -> | )(flip|flips|flipped)[{marks}]", told)
    for follows in (r"\.", ",", r"\n", ";"):
        assert re.search(rf"{person}(: | -> | )(flips|flipped|flip){follows}[{marks}]", told), follows


def test_verbs_have_their_forms() -> None:
    assert phrase("flip {o}")[1:] == ("flip {o}", "flips {o}", "flipped {o}", "flipped {o}", "flipping {o}")
    assert phrase("try and *be late").third == "tries and is late"
    assert phrase("begin to lie").past == "began to lie" and phrase("tie {o}").ing == "tying {o}"
    assert phrase("only *look").past == "only looked"
    assert phrase("put {o} down").participle == "put {o} down"
