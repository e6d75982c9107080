"""A few integers that are changed one by one: the thought after each change is its calculation and all values.

    Let a = 3, b = 5, c = 2. a = a + b. c = c - 1. What is the value of c? A: 1.
                 a 3 b 5 c 2          a 3 + 5 a 8 b 5 c 2
                                                 c 2 - 1 a 8 b 5 c 1

A change is a = 4, a = b, or a plus or minus a small number or another variable; values are 0 to 9.
Variables are in alphabetical order: likely positions of a letter help one layer to learn which value is whose.
A change is decided by the mark after it: "a = a" may continue with "+ b". A thought has the calculation, so that
each of its tokens is one attention and one step, then all values. An assignment is written as + 0, and the initial
values are a thought as well.
"""

import random

from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep
from holdfast_thinking.grammar.words import OPENINGS, SENTENCES, draw_filler, draw_opening, draw_rate
from holdfast_thinking.tasks.typed import typed

LETTERS = "abcdkmnpxyz"
NUM_VARIABLES = 3
ANY_NUMBER = (1, 2, 2, 3, 3, 3, 4, 4, 5, 6)  # of them as often
LARGEST = 9
_STEP = 5  # the largest constant that is added or subtracted
_STARTS = ("Let", "Given", "We start with", "First,")
_KINDS = ("const", "copy", "add", "take", "add other", "take other")
_WEIGHTS = (0.1, 0.1, 0.25, 0.25, 0.2, 0.1)


class Variables:
    """any_number: train on one to six, in any order, as people type them."""

    def __init__(self, long_texts: bool = True, any_number: bool = False) -> None:
        self._long_texts, self._any_number = long_texts, any_number

    def words(self) -> list[str]:
        starts = [*_STARTS, *(f" {each}" for each in _STARTS)]
        return [*OPENINGS, *SENTENCES, *starts, *(f" {each}" for each in LETTERS), " So What is the value of"]

    def example(self, rng: random.Random, events: int) -> TextExample:
        if not self._any_number:
            return self.eval_example(rng, events)
        names = rng.sample(LETTERS, rng.choice(ANY_NUMBER))
        names = sorted(names) if rng.random() < 0.6 else names
        return typed(self._example(rng, rng.randint(0, 4) if rng.random() < 0.5 else events, names), rng)

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        return self._example(rng, events, sorted(rng.sample(LETTERS, NUM_VARIABLES)))

    def _example(self, rng: random.Random, events: int, names: list[str]) -> TextExample:
        values = {name: rng.randint(0, LARGEST) for name in names}
        first = ", ".join(f"{name} = {value}" for name, value in values.items())
        text = f"{draw_opening(rng)}{rng.choice(_STARTS)} {first}."
        steps = [ThoughtStep(len(text) - 1, _listed(values), state=_listed(values))]
        rate, end = draw_rate(rng, self._long_texts), "." if rng.random() < 0.7 else ";"
        for _ in range(events):
            text += draw_filler(rng, rate)
            target, told, work = _change(rng, values)
            text += f" {target} = {told}{end}"
            said = f" {target} {work}{_listed(values)}"
            steps.append(ThoughtStep(len(text) - 1, said, state=said))
        asked = rng.choice(list(values))
        question = f" What is the value of {asked}?{QUESTION_END}"
        return TextExample(text + question, f" {values[asked]}.", tuple(steps))


def _listed(values: dict[str, int]) -> str:
    return "".join(f" {name} {value}" for name, value in values.items())


def _change(rng: random.Random, values: dict[str, int]) -> tuple[str, str, str]:
    """Change a variable so that it stays in 0 .. LARGEST. Return its name, its text, the calculation."""
    target = rng.choice(list(values))
    other = rng.choice([each for each in values if each != target] or [target])
    own, its = values[target], values[other]
    (kind,) = rng.choices(_KINDS, _WEIGHTS) if other != target else rng.choices(_KINDS[2:4])
    amount = its if kind.endswith("other") else rng.randint(1, _STEP)
    is_less = own >= amount if kind.startswith("take") else own + amount > LARGEST
    changed = own - amount if is_less else own + amount
    if kind == "const":
        values[target] = changed = rng.randint(0, LARGEST)
        return target, str(changed), f"{changed} + 0"
    if kind == "copy" or not 0 <= changed <= LARGEST:
        values[target] = its
        return target, other, f"{its} + 0"
    values[target] = changed
    sign = "-" if is_less else "+"
    return target, f"{target} {sign} {other if kind.endswith('other') else amount}", f"{own} {sign} {amount}"
