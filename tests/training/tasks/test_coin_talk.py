"""Coins in free wording: the side after every event, re-derived from marks and from plain words."""

import random
import re
from itertools import pairwise

from holdfast.training.tasks.coin_talk import UNKNOWN, ToldCoin, tell
from holdfast.training.tasks.wording import coin_shapes
from holdfast.training.tasks.wording.coin_phrases import FLIPS, KEEPS, MARKS, unmarked
from holdfast.training.tasks.wording.verbs import phrase

SIDES = ("heads", "tails")
DOWN = (
    r"\b((?<!write )down|bottom|under\w*|hidden|below|(facing|faces|touching) the table|out of sight"
    r"|not (visible|showing|see))\b"
)


def stories(count: int, most: int = 9) -> list[ToldCoin]:
    rng = random.Random(5)
    return [tell(rng, rng.randint(1, most)) for _ in range(count)]


def sides_of(told: ToldCoin) -> list[tuple[int, str]]:
    """(characters read, side) after every mark from the start on: one pass over the marked text."""
    side: int | None = None
    read, found = 0, []
    for character in told.marked:
        if character not in MARKS:
            read += 1
            continue
        match character:
            case "\x07":
                side = told.start
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
        assert [(s.settled_at + 1, s.reminder.strip()) for s in told.example.steps] == expected, told
        thoughts = [step.thought.strip() for step in told.example.steps]
        first = ["" if told.start is not None else expected[0][1]] if expected else []
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


def test_flips_are_those_of_plain_words() -> None:
    """A reader of its own for the plainest sentences."""
    flips = keeps = 0
    for told in stories(900):
        steps = told.example.steps
        for before, step in pairwise(steps):
            said = told.example.prompt[before.settled_at + 1 : step.settled_at + 1].rpartition(". ")[2]
            changes = before.reminder != step.thought
            if re.fullmatch(r"\w+ (flips|tosses|inverts|reverses|flipped|tossed) (it|the coin)", said):
                flips += 1
                assert changes or said.split()[0].lower() in ("nobody", "nor"), (said, told)
            elif re.fullmatch(
                r"\w+ (does not|doesn't|did not|didn't|never|refuses to|forgets to|leaves|only looks|looks)\b[^,.]*",
                said,
            ) and not re.search(r"\b(and|but|then|heads|tails|until)\b", said):
                keeps += 1
                assert not changes, (said, told)
    assert flips > 10 and keeps > 40


def test_texts_are_clean() -> None:
    for told in stories(400):
        assert not set("{}|*") & set(told.example.prompt), told.example.prompt
        assert "  " not in told.example.prompt, told.example.prompt


def test_verbs_have_their_forms() -> None:
    assert phrase("flip {o}")[1:] == ("flip {o}", "flips {o}", "flipped {o}", "flipped {o}", "flipping {o}")
    assert phrase("try and *be late").third == "tries and is late"
    assert phrase("begin to lie").past == "began to lie" and phrase("tie {o}").ing == "tying {o}"
    assert phrase("only *look").past == "only looked"
    assert phrase("put {o} down").participle == "put {o} down"


def test_wordings_are_many() -> None:
    assert len(set(FLIPS)) > 90 and len(set(KEEPS)) > 120
    assert len(set(coin_shapes.STARTS)) > 100
    assert len(set(coin_shapes.ASKS)) > 90 and len(set(coin_shapes.YES_NO)) > 70
