"""Variables in the words people use: any letters, any number of them, in any order, with or without
"Let".

    y is 4. x = 7. Add 2 to y. Is y 6?    Yes, 6.
       y 4   x 7 + 0 y 4 x 7
                  y 4 + 2 y 6 x 7

The thought is that of `Variables`: the calculation, then all variables in the order in
which they were named. In the first statement every variable has a thought: all so far. A half is
written as a difference. Two values that are swapped are one thought: "+ 0" for the first of them. Values
are 0 to 9; a change that would leave them is another one.
"""

import random
import re

from holdfast_thinking.data.text_examples import TextExample, ThoughtStep
from holdfast_thinking.grammar import styles
from holdfast_thinking.grammar import variables as drawn
from holdfast_thinking.grammar.variables import CAPITALS, LETTERS, parts, shapes
from holdfast_thinking.grammar.words import draw_name
from holdfast_thinking.tasks.outside import idle_sentence, opening
from holdfast_thinking.tasks.typed import typed
from holdfast_thinking.tasks.variables import ANY_NUMBER

LARGEST = 9
UNKNOWN = " I do not know."
_FEW = 8  # changes of a short text
_WITH_IT = re.compile(r"[\w ]*\{v\}[\w ]*(\{n\})?[\w ]*")


class VariableTalk:
    def words(self) -> list[str]:
        named = [f" {name}" for name in (*LETTERS, *CAPITALS, *shapes.NAMES)]
        said = [re.sub(r"\{(\w)\}", r"\1", text) for text in shapes.texts]
        more = [re.sub(r"\{(\w)\}", r"\1", text) for text in (*drawn.vocabulary(), *styles.vocabulary())]
        first = [text[:1].upper() + text[1:] for text in said]
        return [*said, *first, *more, *named, " Yes, No, and", UNKNOWN]

    def example(self, rng: random.Random, events: int) -> TextExample:
        """Up to this number of changes: half of the texts are short."""
        few = min(events, rng.randint(0, _FEW)) if rng.random() < 0.5 else events
        return typed(self.eval_example(rng, few), rng)

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        told = _Told(rng)
        told.begin()
        idle = rng.choice((0.0, 0.0, 0.0, 0.1, 0.4))
        stretch = rng.randrange(events) if events and rng.random() < 0.06 else -1
        for number in range(events):
            for _ in range(rng.randint(6, 16) if number == stretch else int(rng.random() < idle)):
                told.say(idle_sentence(rng))
            told.change()
        return told.ask()


class _Told:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.text = ""
        self.values: dict[str, int] = {}
        self.steps: list[ThoughtStep] = []
        kind = rng.random()
        named = LETTERS if kind < 0.75 else CAPITALS if kind < 0.87 else shapes.NAMES
        self._names = rng.sample(named, rng.choice(ANY_NUMBER))
        if rng.random() < 0.5:
            self._names.sort()
        self._mark, self._gap, self._item = rng.choice(styles.STATEMENTS)
        self._number_of_items = 0
        self._is_lower = named is not CAPITALS and rng.random() < 0.2
        self._typing = styles.draw_typing(rng)
        self._last = ""  # the variable that "it" may mean
        self._words = rng.choice((0.0, 0.0, 0.3, 1.0))  # share of numbers written as words

    def say(self, sentence: str) -> None:
        self._last = ""
        if self._typing.drops_apostrophes:
            sentence = sentence.replace("'", "")
        if self._is_lower:
            sentence = sentence.lower()
        self.text += f"{self._gap}{sentence}" if self.text else sentence

    def begin(self) -> None:
        """Some variables at once: "Let a = 3, b = 5 and c = 2." """
        rng = self.rng
        if rng.random() < 0.4:
            self.say(opening(rng))
        count = rng.randint(1, len(self._names))
        for name in self._names[:count]:
            self.values[name] = rng.randint(0, LARGEST)
        head, sign = rng.choice(shapes.LISTS), rng.choice(shapes.IS)
        last = rng.choice((" and ", " and ", ", and ")) if rng.random() < 0.4 else ", "
        self.say(f"{head} ".replace("{N}", draw_name(rng)) if head else "")
        first, self.values = self.values, {}
        between = rng.choice((", ", ", ", ", ", ", ", "; ", " ", " and "))
        for number, (name, value) in enumerate(first.items(), start=1):
            self.values[name] = value
            self.text += f"{name}{sign}{self._number(value)}"
            if number < count:
                self.steps.append(ThoughtStep(len(self.text) - 1, self._list()))
                self.text += last if number == count - 1 and between == ", " else between
        self.text += (rng.choice(shapes.LIST_TAILS) if sign == " = " else "") + self._mark
        self._think(self._list())

    def change(self) -> None:
        rng = self.rng
        missing = [name for name in self._names if name not in self.values]
        if missing and rng.random() < 0.5:
            self._assign(missing[0], rng.randint(0, LARGEST))
            return
        target, kind = rng.choice(list(self.values)), rng.random()
        others = [name for name in self.values if name != target]
        own = self.values[target]
        if kind < 0.1:
            self._assign(target, rng.randint(0, LARGEST))
        elif kind < 0.15 and others:
            self._combine(target)
        elif kind < 0.18 and others:
            self._swap(target, rng.choice(others))
        elif kind < 0.22 and 2 * own <= LARGEST:
            self._compute(target, drawn.either(rng, shapes.DOUBLES, parts.DOUBLED), own, "+", own)
        elif kind < 0.26 and own % 2 == 0:
            self._compute(target, drawn.either(rng, shapes.HALVES, parts.HALVED), own, "-", own // 2)
        elif kind < 0.29:
            self._state(drawn.either(rng, shapes.KEEPS, parts.KEPT), target, self._number(rng.randint(1, 5)))
        elif kind < 0.32:
            self._by_one(target)
        elif kind < 0.34:
            self._compute(target, rng.choice(parts.CLEARED), 0, "+", 0)
        elif kind < 0.38 and others:
            self._compare(target, rng.choice(others))
        else:
            self._add_or_take(target, rng.choice(others) if others and kind > 0.7 else None)

    def _add_or_take(self, target: str, other: str | None) -> None:
        rng, own = self.rng, self.values[target]
        amount = (
            rng.randint(0 if rng.random() < 0.03 else 1, rng.choice((5, 9)))
            if other is None
            else self.values[other]
        )
        if own + amount > LARGEST and own < amount:
            if other is None:
                self._assign(target, amount)
            else:
                shape = drawn.either(rng, parts.COPIED, shapes.COPIES if rng.random() < 0.5 else shapes.SETS)
                self._compute(target, shape, amount, "+", 0, other)
            return
        adds = own + amount <= LARGEST and (own < amount or rng.random() < 0.5)
        if len(self.values) == 1 and rng.random() < 0.3:
            shape = rng.choice(shapes.BARE_ADDS if adds else shapes.BARE_TAKES)
        else:
            shape = drawn.draw_change(rng, adds)
        self._compute(target, shape, own, "+" if adds else "-", amount, other or self._number(amount))

    def _by_one(self, target: str) -> None:
        own = self.values[target]
        adds = own == 0 or (own < LARGEST and self.rng.random() < 0.5)
        shape = self.rng.choice(shapes.INCREMENTS if adds else shapes.DECREMENTS)
        self._compute(target, shape, own, "+" if adds else "-", 1)

    def _assign(self, name: str, value: int) -> None:
        self._compute(name, drawn.draw_set(self.rng), value, "+", 0, self._number(value))

    def _compare(self, target: str, other: str) -> None:
        its, amount = self.values[other], self.rng.randint(1, 4)
        adds = its < amount or (its + amount <= LARGEST and self.rng.random() < 0.5)
        shape = self.rng.choice(parts.MORE_THAN if adds else parts.LESS_THAN).replace("{a}", other)
        self._compute(target, shape, its, "+" if adds else "-", amount, self._number(amount))

    def _combine(self, target: str) -> None:
        one, other = self.rng.sample(list(self.values), 2)
        left, right = self.values[one], self.values[other]
        if left + right <= LARGEST:
            shape, sign = self.rng.choice(shapes.SUMS), "+"
        else:
            shape, sign = self.rng.choice(shapes.DIFFERENCES), "-"
            if left < right:
                one, other, left, right = other, one, right, left
        statement = shape.replace("{a}", one).replace("{b}", other)
        self._compute(target, statement, left, sign, right)

    def _swap(self, one: str, other: str) -> None:
        value, its = self.values[one], self.values[other]
        self.values[other] = value
        statement = (
            drawn.either(self.rng, shapes.SWAPS, parts.SWAPPED).replace("{a}", one).replace("{b}", other)
        )
        self._compute(one, statement, its, "+", 0)

    def _compute(self, name: str, shape: str, left: int, sign: str, right: int, said: str = "") -> None:
        self.values[name] = left + right if sign == "+" else left - right
        self._state(shape, name, said)
        self._think(f" {name} {left} {sign} {right}{self._list()}")

    def _state(self, shape: str, name: str, said: str = "") -> None:
        """Say a statement. A variable at its start keeps its small letter."""
        lead = self.rng.choice(shapes.LEADS)
        starts_with_name = shape.startswith(("{v}", "{n}")) or shape.split(" ")[0].rstrip(",") in self.values
        if not lead and not starts_with_name and self.rng.random() < 0.9:
            shape = shape[0].upper() + shape[1:] if shape[0] != "{" else shape
        if name == self._last and _WITH_IT.fullmatch(shape) and self.rng.random() < 0.3:
            shape = shape.replace("{v}", "it")
        text = shape.replace("{v}", name).replace("{n}", said).replace("{N}", draw_name(self.rng))
        item = ""
        if self._item:
            self._number_of_items += 1
            item = self._item.format(self._number_of_items)
        self.say(f"{item}{lead}{text}{self._mark}")
        self._last = name

    def _number(self, value: int) -> str:
        return shapes.NUMBERS[value] if self.rng.random() < self._words else str(value)

    def _list(self) -> str:
        return "".join(f" {name} {value}" for name, value in self.values.items())

    def _think(self, thought: str) -> None:
        """The thought is settled by the mark after the statement, or by the end of the line."""
        at = len(self.text) - 1 if self._mark else len(self.text)
        self.steps.append(ThoughtStep(at, thought))

    def ask(self) -> TextExample:
        rng, name = self.rng, self.rng.choice(list(self.values))
        value, end = self.values[name], rng.choice(shapes.MARKS)
        if rng.random() < 0.04:
            unknown = rng.choice([each for each in LETTERS if each not in self.values])
            return self._example(parts.draw("QUESTION", rng).replace("{v}", unknown) + end, UNKNOWN)
        if rng.random() < 0.25:
            asked = value if rng.random() < 0.5 else rng.randint(0, LARGEST)
            question = parts.draw("CHECK", rng).replace("{v}", name).replace("{n}", self._number(asked))
            return self._example(question + end, f" {'Yes' if asked == value else 'No'}, {value}.")
        question = parts.draw("QUESTION", rng).replace("{v}", name)
        if rng.random() < 0.05:
            question = question.rstrip("?. ")
        return self._example(question + end, f" {value}.")

    def _example(self, question: str, answer: str) -> TextExample:
        question = question.replace("{N}", draw_name(self.rng))
        if self._typing.drops_apostrophes:
            question = question.replace("'", "")
        return TextExample(f"{self.text} {question}", answer, tuple(self.steps))
