"""Variables in the words people use: any letters, any number of them, in any order, with or without
"Let".

    y is 4. x = 7. Add 2 to y. Is y 6?    Yes, 6.
       y 4   7 + 0 x 7 y 4
                  4 + 2 y 6 x 7

The thought is that of `Variables` with "worked": the calculation, the changed variable, then the
others in alphabetical order. The first statement has all its variables as a thought. Values are 0 to
9; a change that would leave them is another one.
"""

import random
from dataclasses import dataclass, field

from holdfast.training.tasks.filler import split_list
from holdfast.training.tasks.idle_talk import idle_sentence, opening
from holdfast.training.tasks.text_examples import QUESTION_END, TextExample, ThoughtStep

LETTERS = "abcdefghjkmnpqrstuvwxyz"
LARGEST = 9
MOST_VARIABLES = 4
UNKNOWN = " I do not know."
_LISTS = ("Let", "Given", "We start with", "First,", "Suppose", "Say", "Assume", "Start with", "Now let", "")
_IS = (" = ", " is ", " equals ", " = ")
SETS = split_list(
    "{v} = {n}|{v} is {n}|{v} is now {n}|Set {v} to {n}|{v} becomes {n}|Put {n} in {v}|{v} gets {n}|"
    "Let {v} be {n}|Make {v} equal to {n}|Then {v} = {n}",
    "|",
)
ADDS = split_list(
    "{v} = {v} + {n}|{v} = {n} + {v}|Add {n} to {v}|Increase {v} by {n}|{v} grows by {n}|"
    "{v} goes up by {n}|Then add {n} to {v}|{v} rises by {n}|Now {v} = {v} + {n}|"
    "{v} plus {n} goes into {v}",
    "|",
)
TAKES = split_list(
    "{v} = {v} - {n}|Subtract {n} from {v}|Decrease {v} by {n}|Take {n} away from {v}|{v} shrinks by {n}|"
    "{v} goes down by {n}|Then subtract {n} from {v}|{v} falls by {n}|{v} loses {n}|Take {n} from {v}",
    "|",
)
_SUMS = ("{v} = {a} + {b}", "Set {v} to {a} + {b}", "{v} is {a} plus {b}")
_DIFFERENCES = ("{v} = {a} - {b}", "Set {v} to {a} - {b}", "{v} is {a} minus {b}")
_DOUBLES = ("Double {v}", "{v} doubles", "{v} = {v} + {v}")
ASKS = (
    "What is the value of {v}?", "What is {v}?", "What's {v}?", "What is {v} now?", "How much is {v}?",
    "What does {v} equal?", "Tell me {v}.", "{v} = ?", "What is the final value of {v}?",
    "What value does {v} have?", "Give me the value of {v}.",
    "And {v}?", "So what is {v}?", "What is {v} at the end?", "How large is {v} now?",
)  # fmt: skip
YES_NO = split_list(
    "Is {v} {n}?|Is {v} equal to {n}?|Is {v} now {n}?|Does {v} equal {n}?|Is the value of {v} {n}?|"
    "Is {v} still {n}?",
    "|",
)
_MARKS = (QUESTION_END,) * 8 + (" Answer:", "")


class VariableTalk:
    name = "variable-talk"

    def words(self) -> list[str]:
        shapes = (*_LISTS, *SETS, *ADDS, *TAKES, *_SUMS, *_DIFFERENCES, *_DOUBLES, *ASKS, *YES_NO, *_IS)
        named = [f" {letter}" for letter in LETTERS]
        return [
            *(each.format(v="x", n="1", a="y", b="z") for each in shapes),
            *named,
            " Yes, No, and",
            UNKNOWN,
            *_MARKS,
        ]

    def example(self, rng: random.Random, events: int) -> TextExample:
        told = _Told(rng)
        told.begin()
        idle = rng.choice((0.0, 0.0, 0.0, 0.1, 0.4))
        stretch = rng.randrange(events) if rng.random() < 0.06 else -1
        for number in range(events):
            for _ in range(rng.randint(6, 16) if number == stretch else int(rng.random() < idle)):
                told.say(idle_sentence(rng))
            told.change()
        return told.ask()


@dataclass
class _Told:
    rng: random.Random
    text: str = ""
    values: dict[str, int] = field(default_factory=dict)
    steps: list[ThoughtStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._letters = self.rng.sample(LETTERS, self.rng.randint(1, MOST_VARIABLES))
        self._mark = self.rng.choice((".", ".", ".", ";"))

    def say(self, sentence: str) -> None:
        self.text += f" {sentence}" if self.text else sentence

    def begin(self) -> None:
        """Some variables at once: "Let a = 3, b = 5 and c = 2." """
        if self.rng.random() < 0.4:
            self.say(opening(self.rng))
        count = self.rng.randint(1, len(self._letters))
        for letter in self._letters[:count]:
            self.values[letter] = self.rng.randint(0, LARGEST)
        head, sign = self.rng.choice(_LISTS), self.rng.choice(_IS)
        items = [f"{letter}{sign}{value}" for letter, value in self.values.items()]
        joined = ", ".join(items)
        if len(items) > 1 and self.rng.random() < 0.4:
            joined = f"{', '.join(items[:-1])} and {items[-1]}"
        self.say(f"{head} {joined}." if head else f"{joined}.")
        self._think(self._list())

    def change(self) -> None:
        missing = [letter for letter in self._letters if letter not in self.values]
        if missing and self.rng.random() < 0.5:
            self._assign(missing[0], self.rng.randint(0, LARGEST))
            return
        target, kind = self.rng.choice(list(self.values)), self.rng.random()
        other = self.rng.choice(list(self.values))
        own, its = self.values[target], self.values[other]
        amount, word = (
            (its, other) if kind > 0.6 and other != target else ((step := self.rng.randint(1, 5)), str(step))
        )
        if kind < 0.1:
            self._assign(target, self.rng.randint(0, LARGEST))
        elif kind < 0.18 and len(self.values) > 1:
            self._combine(target)
        elif kind < 0.24 and 2 * own <= LARGEST:
            self._compute(target, self.rng.choice(_DOUBLES).format(v=target), own, "+", own)
        elif own + amount <= LARGEST and (own < amount or self.rng.random() < 0.5):
            self._compute(target, self.rng.choice(ADDS).format(v=target, n=word), own, "+", amount)
        elif own >= amount:
            self._compute(target, self.rng.choice(TAKES).format(v=target, n=word), own, "-", amount)
        else:
            self._compute(target, self.rng.choice(SETS).format(v=target, n=other), its, "+", 0)

    def ask(self) -> TextExample:
        letter = self.rng.choice(list(self.values))
        value, end = self.values[letter], self.rng.choice(_MARKS)
        if self.rng.random() < 0.05:
            letter = self.rng.choice([each for each in LETTERS if each not in self.values])
            return TextExample(f"{self.text} {self._asks(letter)}{end}", UNKNOWN, tuple(self.steps))
        if self.rng.random() < 0.3:
            asked = value if self.rng.random() < 0.5 else self.rng.randint(0, LARGEST)
            question = self.rng.choice(YES_NO).format(v=letter, n=asked)
            answer = f" {'Yes' if asked == value else 'No'}, {value}."
            return TextExample(f"{self.text} {question}{end}", answer, tuple(self.steps))
        return TextExample(f"{self.text} {self._asks(letter)}{end}", f" {value}.", tuple(self.steps))

    def _asks(self, letter: str) -> str:
        return self.rng.choice(ASKS).format(v=letter)

    def _assign(self, letter: str, value: int) -> None:
        self._compute(letter, self.rng.choice(SETS).format(v=letter, n=value), value, "+", 0)

    def _combine(self, target: str) -> None:
        """The sum or the difference of two others, or of one and a number."""
        one, other = self.rng.sample(list(self.values), 2)
        left, right = self.values[one], self.values[other]
        if left + right <= LARGEST:
            shape, sign = self.rng.choice(_SUMS), "+"
        else:
            shape, sign = self.rng.choice(_DIFFERENCES), "-"
            one, other, left, right = (
                (one, other, left, right) if left >= right else (other, one, right, left)
            )
        self._compute(target, shape.format(v=target, a=one, b=other), left, sign, right)

    def _compute(self, letter: str, statement: str, left: int, sign: str, right: int) -> None:
        self.values[letter] = left + right if sign == "+" else left - right
        self.say(f"{statement}{self._mark}")
        others = "".join(f" {name} {value}" for name, value in sorted(self.values.items()) if name != letter)
        self._think(f" {left} {sign} {right} {letter} {self.values[letter]}{others}")

    def _list(self) -> str:
        return "".join(f" {name} {value}" for name, value in sorted(self.values.items()))

    def _think(self, thought: str) -> None:
        self.steps.append(ThoughtStep(len(self.text) - 1, thought, self._list()))
