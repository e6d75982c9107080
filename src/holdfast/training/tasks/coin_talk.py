"""A coin in the words people use: synonyms, negations, pronouns, any names, any first sentence.

    There's a quarter on the bar, heads up. Bob tosses it over. She only looks at it. Is it still heads up?
                                                           tails                tails
    No, tails.

The thought after an event is the side that is up; the side at the start is only remembered. A
sentence without the coin has no thought. A yes/no question is answered with yes or no and the side.
Without a first side the answer is " I do not know."
"""

import random
import re
from dataclasses import dataclass

from holdfast.training.tasks.idle_talk import idle_sentence, opening
from holdfast.training.tasks.text_examples import TextExample, ThoughtStep
from holdfast.training.tasks.wording import coin_grammar, words
from holdfast.training.tasks.wording.coin_grammar import CoinGrammar
from holdfast.training.tasks.wording.coin_phrases import FLIP, FLIP_IF, MARKS, START, TO, unmarked
from holdfast.training.tasks.wording.coin_shapes import (
    ANSWER_MARKS,
    ASK_LEADS,
    ASKS,
    ASKS_DOWN,
    SIDES,
    STARTS,
    YES_NO,
)

UNKNOWN = " I do not know."
_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])")
_FEW = 8  # events of a short text


class CoinTalk:
    name = "coin-talk"

    def words(self) -> list[str]:
        """Texts with all words, for a tokenizer."""
        said = coin_grammar.vocabulary()
        typed = " doesnt dont didnt isnt wasnt wont cant couldnt wouldnt hasnt whats its theres thats lets"
        return [*said, typed, *words.NAMES, *words.ADVERBS, " Yes, No, Heads Tails", UNKNOWN]

    def example(self, rng: random.Random, events: int) -> TextExample:
        """Up to this number of events: half of the texts are short, like most questions of people."""
        return self.eval_example(rng, min(events, rng.randint(1, _FEW)) if rng.random() < 0.5 else events)

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        """With exactly this number of sentences about the coin."""
        return tell(rng, events).example


@dataclass(frozen=True)
class ToldCoin:
    """marked: the prompt with the marks of `coin_phrases`. start: the first side, None if it is not told."""

    example: TextExample
    marked: str
    start: int | None


def tell(rng: random.Random, events: int) -> ToldCoin:
    story = _Story(rng)
    if rng.random() < 0.5:
        story.say(opening(rng))
    start = story.start() if rng.random() >= 0.03 else None
    idle = rng.choice((0.0, 0.0, 0.1, 0.4, 0.7))
    stretch = rng.randrange(events) if rng.random() < 0.1 else -1
    for number in range(events):
        for _ in range(rng.randint(8, 24) if number == stretch else int(rng.random() < idle)):
            story.say(idle_sentence(rng))
        story.event()
    return ToldCoin(story.ask(), story.marked, start)


@dataclass(frozen=True)
class _Style:
    """How sentences end and what stands between them."""

    end: str = "."
    gap: str = " "
    item: str = ""  # before each sentence; {} is its number
    lowers: bool = False  # whether sentences start with small letters


_STYLES = (
    *(_Style(),) * 16,
    _Style(lowers=True),
    _Style(gap="\n"),
    _Style(end="", gap="\n"),
    _Style(end=";", lowers=True),
    _Style(end="!"),
    _Style(end=",", lowers=True),
    _Style(end="...", lowers=True),
    _Style(gap="\n", item="{}. "),
    _Style(end="", gap="\n", item="- "),
)


class _Story:
    """A text as it is told, and the side of the coin so far."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._grammar = CoinGrammar(rng)
        self._style = rng.choice(_STYLES)
        self._is_lower = rng.random() < 0.08
        self._drops_apostrophes = rng.random() < 0.08
        self._length, self._number = 0, 0
        self._steps: list[ThoughtStep] = []
        self._side, self._known = rng.randrange(2), False
        self._last = ""  # the mark of the last sentence, if it is about the coin
        self.marked = ""

    def say(self, sentence: str) -> None:
        """An idle sentence with its period, or an opening."""
        self._last = ""
        self._append(sentence.removesuffix("."), self._style.end if sentence.endswith(".") else "")

    def start(self) -> int:
        rng, coin = self._rng, self._grammar.coin
        a = "an" if coin[0] in "aeiou" else "a"
        named = rng.choice((f"{a} {coin}", f"{a} {coin}", f"the {coin}", f"my {coin}", f"this {coin}"))
        side, other = SIDES[self._side], SIDES[1 - self._side]
        capital = named[0].upper() + named[1:]
        told = rng.choice(STARTS).replace("{N}", self._grammar.name())
        told = told.format(C=capital, c=named, s=side, S=side.capitalize(), x=other)
        self._append(told + START, self._style.end)
        return self._side

    def event(self) -> None:
        sentence = self._grammar.sentence(self._side, self._last)
        if sentence[-1] in MARKS and sentence[-2] == ".":  # the period is a part of the event
            self._append(sentence, "")
        else:
            self._append(sentence, self._style.end)
        marks = [each for each in sentence if each in MARKS]
        self._last = marks[-1] if len(marks) == 1 else ""

    def ask(self) -> TextExample:
        question, answer = self._question()
        if self._rng.random() < 0.15:
            question = f"{self._rng.choice(ASK_LEADS)} {question[0].lower()}{question[1:]}"
        if self._rng.random() < 0.5:
            question = question.replace("coin", self._grammar.coin)
        if self._rng.random() < 0.06:
            question = question.rstrip("?.")
        question = self._typed(question)
        gap = "" if not self.marked else " " if self._rng.random() < 0.95 else "\n"
        self.marked += f"{gap}{question}{self._rng.choice(ANSWER_MARKS)}"
        prompt = unmarked(self.marked)
        if self._is_lower:
            end = prompt[len(prompt.rstrip(":eranswA")) :]
            prompt = prompt[: len(prompt) - len(end)].lower() + end
        return TextExample(prompt, answer if self._known else UNKNOWN, tuple(self._steps))

    def _question(self) -> tuple[str, str]:
        rng, kind, side = self._rng, self._rng.random(), SIDES[self._side]
        if kind < 0.4:
            asked = rng.choice(SIDES)
            name = self._grammar.name()
            question = rng.choice(YES_NO).replace("{N}", name).format(s=asked, S=asked.capitalize())
            return question, f" {'Yes' if asked == side else 'No'}, {side}."
        if kind < 0.43:
            return rng.choice(ASKS_DOWN), f" {SIDES[1 - self._side]}."
        return rng.choice(ASKS), f" {side}."

    def _append(self, marked: str, end: str) -> None:
        """Add a sentence; its marks are events."""
        marked = self._typed(_BEFORE_VOWEL.sub(r"\1n ", marked))
        if not self._style.lowers:
            marked = marked[0].upper() + marked[1:]
        self._number += 1
        if self._style.item:
            marked = self._style.item.format(self._number) + marked
        if self.marked:
            marked = self._style.gap + marked
        for character in marked + end:
            if character in MARKS:
                self._happens(character)
            else:
                self._length += 1
        self.marked += marked + end

    def _typed(self, text: str) -> str:
        return text.replace("'", "") if self._drops_apostrophes else text

    def _happens(self, mark: str) -> None:
        if mark == START:
            self._known = True
        elif mark in TO:
            self._side, self._known = TO.index(mark), True
        elif mark == FLIP or (mark in FLIP_IF and FLIP_IF.index(mark) == self._side):
            self._side = 1 - self._side
        if self._known:
            side = f" {SIDES[self._side]}"
            self._steps.append(ThoughtStep(self._length - 1, "" if mark == START else side, side))
