"""A coin in the words people use: synonyms, negations, pronouns, any names, any first sentence.

    There's a quarter on the bar, heads up. Bob tosses it over. She only looks at it. Is it still heads up?
                                                           tails                tails
    No, tails.

The thought after an event is the side that is up; the side at the start is one only where states are
carried. A sentence without the coin has no thought. A yes/no question is answered with yes or no and the side.
Without a first side the answer is " I do not know."
"""

import random
import re

from holdfast_thinking.data.text_examples import TextExample, ThoughtStep
from holdfast_thinking.grammar import asks_and_starts, styles, words
from holdfast_thinking.grammar import coin as coin_grammar
from holdfast_thinking.grammar.asks_and_starts import asks
from holdfast_thinking.grammar.coin import CoinGrammar
from holdfast_thinking.grammar.coin_phrases import FLIP, FLIP_IF, MARKS, START, TO, shapes, unmarked
from holdfast_thinking.grammar.styles import draw_style, draw_typing
from holdfast_thinking.tasks.outside import idle_sentence, opening
from holdfast_thinking.tasks.typed import typed

SIDES = shapes.SIDES
UNKNOWN = " I do not know."
_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])")
_FEW = 8  # events of a short text


class CoinTalk:
    def words(self) -> list[str]:
        modules = (coin_grammar, asks_and_starts, styles)
        said = [text for module in modules for text in module.vocabulary()]
        people = (*words.NAMES, *words.TITLES, *words.RELATIONS, *words.JOBS)
        typed = " doesnt dont didnt isnt wasnt wont cant couldnt wouldnt hasnt whats its theres thats lets"
        return [*said, typed, *people, *words.ADVERBS, " Yes, No, Heads Tails", UNKNOWN]

    def example(self, rng: random.Random, events: int) -> TextExample:
        """Up to this number of events: half of the texts are short, like most questions of people."""
        few = min(events, rng.randint(1, _FEW)) if rng.random() < 0.5 else events
        return typed(self.eval_example(rng, few), rng)

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        """With exactly this number of sentences about the coin."""
        return tell(rng, events).example


def tell(rng: random.Random, events: int) -> "CoinStory":
    story = begin(rng, events)
    story.ask()
    return story


def begin(rng: random.Random, events: int) -> "CoinStory":
    """Return a story without its question."""
    story = CoinStory(rng)
    if rng.random() < (0.15 if story.is_simple else 0.5):
        story.say(opening(rng))
    if rng.random() >= 0.03:
        story.start()
    idle = 0.0 if story.is_simple else rng.choice((0.0, 0.0, 0.1, 0.4, 0.7))
    stretch = rng.randrange(events) if events and rng.random() < 0.1 and not story.is_simple else -1
    for number in range(events):
        for _ in range(rng.randint(8, 24) if number == stretch else int(rng.random() < idle)):
            story.say(idle_sentence(rng))
        story.event()
    return story


class CoinStory:
    """marked: the prompt with the marks of `coin_phrases`. first: the side at the start, None if it is not told."""

    example: TextExample
    question: str

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._grammar = CoinGrammar(rng)
        self.is_simple = self._grammar.is_simple
        self._style = draw_style(rng, 0.3 if self.is_simple else 0.6)
        self._typing = draw_typing(rng)
        self._length, self._number = 0, 0
        self._steps: list[ThoughtStep] = []
        self._side, self._known = rng.randrange(2), False
        self._last = ""  # the mark of the last sentence, if it is about the coin
        self._held = ""  # a mark that what follows its sentence decides
        self.first: int | None = None
        self.marked = ""

    @property
    def told(self) -> tuple[str, tuple[ThoughtStep, ...]]:
        """Return the story so far, and its thoughts."""
        return unmarked(self.marked), tuple(self._steps)

    def say(self, sentence: str) -> None:
        self._last = ""
        end = self._style.end if sentence.endswith(".") else ""
        self._append(sentence.removesuffix("."), end, self._style.heads_item or self._number > 0)

    def start(self) -> None:
        rng, coin = self._rng, self._grammar.coin
        a = "an" if coin[0] in "aeiou" else "a"
        named = rng.choice((f"{a} {coin}", f"{a} {coin}", f"the {coin}", f"my {coin}", f"this {coin}"))
        side, other = SIDES[self._side], SIDES[1 - self._side]
        capital = named[0].upper() + named[1:]
        told = words.fill(asks_and_starts.draw_start(rng), rng)
        told = told.format(C=capital, c=named, s=side, S=side.capitalize(), x=other)
        self._append(told + START, self._style.end, self._style.heads_item)
        self.first = self._side

    def event(self) -> None:
        sentence = self._grammar.sentence(self._side, self._last, self.first)
        while self._is_bare(sentence) and not self._style.end and self._style.gap == " ":
            sentence = self._grammar.sentence(self._side, self._last, self.first)
        if not self._is_bare(sentence):
            self._append(sentence, self._style.end)
        elif self._style.end:
            self._append(sentence[:-2], self._style.end + sentence[-1])
        else:
            self._append(sentence[:-2], "")
            self._held = sentence[-1]
        marks = [each for each in sentence if each in MARKS]
        self._last = marks[-1] if len(marks) == 1 else ""

    def ask(self) -> None:
        rng = self._rng
        gap = "" if not self.marked else " " if rng.random() < 0.9 else "\n"
        if self._held:
            gap = rng.choice(("\n", "\n", ". ", ". ", ", ", "... ", "? ", " - "))
        elif not self._style.end and self.marked:
            gap = rng.choice((" ", "\n", ". ", ". ", ", "))
        self._write(gap)
        question, answer = self._question()
        if rng.random() < 0.1:
            question = f"{rng.choice(shapes.ASK_LEADS)} {question[0].lower()}{question[1:]}"
        if rng.random() < 0.5:
            question = question.replace("coin", self._grammar.coin)
        if rng.random() < 0.06:
            question = question.rstrip("?. ")
        self.question = self._typing.typed(question)
        self.marked += f"{self.question}{rng.choice(shapes.ANSWER_MARKS)}"
        prompt = unmarked(self.marked)
        if self._typing.is_lower:
            end = prompt[len(prompt.rstrip(":eranswA")) :]
            prompt = prompt[: len(prompt) - len(end)].lower() + end
        self.example = TextExample(prompt, answer if self._known else UNKNOWN, tuple(self._steps))

    def _question(self) -> tuple[str, str]:
        rng, side = self._rng, SIDES[self._side]
        down = rng.random() < 0.06
        if rng.random() >= 0.4:
            question = asks.draw("DOWN_QUESTION" if down else "SIDE_QUESTION", rng)
            return self._named(question), f" {SIDES[self._side ^ down]}."
        asked = rng.choice(SIDES)
        question = asks.draw("DOWN_YES_NO" if down else "YES_NO_QUESTION", rng)
        question = question.replace("{s}", asked).replace("{S}", asked.capitalize())
        return self._named(question), f" {'Yes' if (asked == side) != down else 'No'}, {side}."

    def _named(self, question: str) -> str:
        return question.replace("{N}", self._grammar.name()) if "{N}" in question else question

    @staticmethod
    def _is_bare(sentence: str) -> bool:
        """Return whether what follows the sentence decides the event: "Bob flips" may have an object."""
        return sentence[-1] in MARKS and sentence[-2] == "."

    def _append(self, marked: str, end: str, is_item: bool = True) -> None:
        marked = self._typing.typed(_BEFORE_VOWEL.sub(r"\1n ", marked))
        if not self._style.lowers:
            marked = marked[0].upper() + marked[1:]
        if self.marked:
            self._write(self._style.gap)
        if self._style.item and is_item:
            self._number += 1
            self._write(self._style.item.format(self._number))
        self._write(marked + end)

    def _write(self, marked: str) -> None:
        if self._held:
            place = len(marked) - len(marked.lstrip(" ")) + 1
            marked, self._held = marked[:place] + self._held + marked[place:], ""
        for character in marked:
            if character in MARKS:
                self._happens(character)
            else:
                self._length += 1
        self.marked += marked

    def _happens(self, mark: str) -> None:
        if mark == START:
            self._known = True
        elif mark in TO:
            self._side, self._known = TO.index(mark), True
        elif mark == FLIP or (mark in FLIP_IF and FLIP_IF.index(mark) == self._side):
            self._side = 1 - self._side
        if self._known:
            side = f" {SIDES[self._side]}"
            is_start = mark == START
            self._steps.append(
                ThoughtStep(self._length - 1, "" if is_start else side, state=side if is_start else "")
            )
