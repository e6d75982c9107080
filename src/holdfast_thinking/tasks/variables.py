"""A few integers that are changed one by one: the thought after each change is the changed value.

    Let a = 3, b = 5, c = 2. a = a + b. c = c - 1. What is the value of c? A: 1.
    changed                           a 8        c 1
    all                               a 8 b 5 c 2
                                                 a 8 b 5 c 1
    worked       a 3 b 5 c 2          a 3 + 5 a 8 b 5 c 2
                                                 c 2 - 1 a 8 b 5 c 1

A change is a = 4, a = b, or a plus or minus a small number or another variable; values are 0 to 9.
Variables are in alphabetical order, in texts and in thoughts. With any order, C and T (one layer
each) learn slowly which value belongs to which variable; likely positions of a letter help them.

A change is decided by the mark after it: "a = a" may continue with "+ b". "all" has the values of
all variables, so that no value is further back than the last thought. "worked" has them too, after
the calculation: T is one layer, so a token of a thought is one attention and one step. The name of the
changed variable comes first, so that its value can be looked up by name, operands have tokens of their
own, and a variable has the same place in all thoughts. An assignment of a number or a variable is
written as + 0, and the initial values are a thought as well. With "all" and "worked", a chunk with
several changes has only the thought of the last.

As a chain of thought: " a = 8. c = 1. So 1."; with "all" and "worked" the thoughts, one sentence
each: " a 3 b 5 c 2. a 3 + 5 a 8 b 5 c 2. c 2 - 1 a 8 b 5 c 1. So 1."; with one number for each event:
" 8 1. So 1."
"""

from typing import Literal

import numpy as np

from holdfast_thinking.model.batch import Bools, Ints
from holdfast_thinking.tasks.filler import Filler, filler_texts
from holdfast_thinking.tasks.phrases import DrawnTexts, PhraseTable
from holdfast_thinking.tasks.task import AnswerForm

LETTERS = "abcdkmnpxyz"
NUM_VARIABLES = 3
LARGEST = 9
_STEP = 5  # the largest constant that is added or subtracted
_STARTS = ("Let", "Given", "We start with", "First,")
ThoughtContent = Literal["changed", "all", "worked"]
_CONST, _COPY, _ADD, _TAKE, _ADD_OTHER, _TAKE_OTHER = range(6)
_WEIGHTS = (0.1, 0.1, 0.25, 0.25, 0.2, 0.1)


class Variables:
    name = "variables"

    def __init__(self, thought: ThoughtContent = "changed", long_texts: bool = True) -> None:
        self.thought = thought
        names = [f" {letter}" for letter in LETTERS]
        numbers = [f" {value}" for value in range(LARGEST + 1)]
        values = [f" {letter} {value}" for letter in LETTERS for value in range(LARGEST + 1)]
        sets = [f" {letter} =" for letter in LETTERS]
        starts = [*_STARTS, *(f" {each}" for each in _STARTS)]
        marks = [",", ".", ";", " +", " -", " So", " What is the value of", "? A:"]
        self.phrases = p = PhraseTable([*filler_texts(), *names, *numbers, *values, *sets, *starts, *marks])
        self._filler = Filler(p, long_texts)
        self._names, self._numbers, self._sets = p.numbers(names), p.numbers(numbers), p.numbers(sets)
        self._values = p.numbers(values).reshape(len(LETTERS), -1)
        self._starts = p.numbers(starts).reshape(2, -1)
        self._signs = p.numbers([" +", " -"])
        self._ends = p.numbers([".", ";"])

    def words(self) -> list[str]:
        return [text.replace("|", "") for text in self.phrases.texts]

    def draw(
        self, rng: np.random.Generator, num_texts: int, fewest: int, most: int, form: AnswerForm
    ) -> DrawnTexts:
        count = rng.integers(fewest, most + 1, num_texts)[:, None]
        is_event = np.arange(most) < count  # [B, n]
        letters = rng.permuted(np.tile(np.arange(len(LETTERS)), (num_texts, 1)), axis=1)[:, :NUM_VARIABLES]
        letters.sort(axis=1)
        first = rng.integers(0, LARGEST + 1, (num_texts, NUM_VARIABLES))
        target, details, values = _change(rng, first, most)  # [B, n], [B, n, 4], [B, n, variables]
        opening = self._filler.openings(rng, num_texts)
        start = self._starts[(opening > 0).astype(np.int64), rng.integers(0, len(_STARTS), num_texts)]
        head = np.concatenate((opening[:, None], start[:, None], self._first_values(letters, first)), axis=1)
        changed = np.take_along_axis(letters, target, axis=1)  # [B, n], as letters
        events = self._events(rng, is_event, letters, changed, details)  # [B, 6 n]
        asked = rng.integers(0, NUM_VARIABLES, num_texts)
        letter = np.take_along_axis(letters, asked[:, None], axis=1)[:, 0]
        question = np.stack(
            (
                self._all(num_texts, " What is the value of"),
                self._names[letter],
                self._all(num_texts, "? A:"),
            ),
            axis=1,
        )
        last = np.take_along_axis(values, (count - 1)[:, :, None], axis=1)[:, 0]  # [B, variables]
        result = np.take_along_axis(last, asked[:, None], axis=1)[:, 0]
        after = np.take_along_axis(values, target[:, :, None], axis=2)[:, :, 0]  # [B, n]: the changed value
        said = self._thoughts(letters, first, target, details, values)  # [B, n, phrases]
        at_first = self._values[letters, first]  # [B, variables]
        if form == "cot":
            chain = self._chain(is_event, at_first, said, changed, after)
        else:
            chain = np.where(is_event, self._numbers[after], 0)
        answer = self._answers(form, chain, result)
        phrases = np.concatenate((head, events, question, answer), axis=1)
        thoughts = np.zeros((*phrases.shape, said.shape[2]), dtype=np.int64)
        if form == "thinking":
            ends = slice(head.shape[1] + 5, head.shape[1] + 6 * most, 6)
            thoughts[:, ends] = said * is_event[:, :, None]
            if self.thought == "worked":
                thoughts[:, head.shape[1] - 1, :NUM_VARIABLES] = at_first
        is_answer = np.zeros(phrases.shape, dtype=np.bool_)
        is_answer[:, -answer.shape[1] :] = True
        return DrawnTexts(phrases, thoughts, is_answer, replaces=self.thought != "changed")

    def _all(self, num_texts: int, text: str) -> Ints:
        return np.full(num_texts, self.phrases.number(text), dtype=np.int64)

    def _first_values(self, letters: Ints, first: Ints) -> Ints:
        """ " a =", " 3", "," for each variable, a full stop after the last: [B, 3 variables]."""
        marks = np.broadcast_to(self.phrases.numbers([","] * (NUM_VARIABLES - 1) + ["."]), letters.shape)
        return np.stack((self._sets[letters], self._numbers[first], marks), axis=2).reshape(len(letters), -1)

    def _events(
        self, rng: np.random.Generator, is_event: Bools, letters: Ints, changed: Ints, details: Ints
    ) -> Ints:
        """Filler, target, operand, sign, operand, mark: [B, 6 n]."""
        kind, other, constant, sign = (details[:, :, index] for index in range(4))
        other_letter = self._names[np.take_along_axis(letters, other, axis=1)]
        own = self._names[changed]
        number = self._numbers[constant]
        left = np.where(kind == _CONST, number, np.where(kind == _COPY, other_letter, own))
        right = np.where(kind >= _ADD_OTHER, other_letter, np.where(kind >= _ADD, number, 0))
        signs = np.where(kind >= _ADD, self._signs[sign], 0)
        ends = np.broadcast_to(rng.choice(self._ends, (len(is_event), 1), p=(0.7, 0.3)), is_event.shape)
        filler = self._filler.between(rng, is_event)
        row = np.stack((filler, self._sets[changed], left, signs, right, ends), axis=2)
        return (row * is_event[:, :, None]).reshape(len(is_event), -1)

    def _thoughts(self, letters: Ints, first: Ints, target: Ints, details: Ints, values: Ints) -> Ints:
        """The thought of each change: [B, n, phrases]."""
        every = self._values[letters[:, None, :], values]  # [B, n, variables]
        if self.thought == "all":
            return every
        if self.thought == "changed":
            return np.take_along_axis(every, target[:, :, None], axis=2)
        kind, other, constant, sign = (details[:, :, index] for index in range(4))
        before = np.concatenate((first[:, None], values[:, :-1]), axis=1)  # [B, n, variables]
        own, its = (np.take_along_axis(before, of[:, :, None], axis=2)[:, :, 0] for of in (target, other))
        left = np.where(kind == _CONST, constant, np.where(kind == _COPY, its, own))
        right = np.where(kind >= _ADD_OTHER, its, np.where(kind >= _ADD, constant, 0))
        signs = self._signs[np.where(kind >= _ADD, sign, 0)]
        name = self._names[np.take_along_axis(letters, target, axis=1)]
        work = np.stack((name, self._numbers[left], signs, self._numbers[right]), axis=2)
        return np.concatenate((work, every), axis=2)

    def _chain(self, is_event: Bools, at_first: Ints, said: Ints, changed: Ints, after: Ints) -> Ints:
        """A chain of thought that restates every event: [B, phrases]."""
        if self.thought == "changed":
            said = np.stack((self._sets[changed], self._numbers[after]), axis=2)
        stop = self.phrases.number(".")
        sentences = np.pad(said, ((0, 0), (0, 0), (0, 1)), constant_values=stop) * is_event[:, :, None]
        chain = sentences.reshape(len(said), -1)
        if self.thought != "worked":
            return chain
        return np.concatenate((np.pad(at_first, ((0, 0), (0, 1)), constant_values=stop), chain), axis=1)

    def _answers(self, form: AnswerForm, chain: Ints, result: Ints) -> Ints:
        stop = self._all(len(result), ".")[:, None]
        final = np.concatenate((self._numbers[result][:, None], stop), axis=1)
        if form in ("thinking", "none"):
            return final
        so = self._all(len(result), " So")[:, None]
        return np.concatenate((chain, stop, so, final) if form == "words" else (chain, so, final), axis=1)


def _change(rng: np.random.Generator, first: Ints, most: int) -> tuple[Ints, Ints, Ints]:
    """The changed variable [B, n]; kind, other variable, constant, sign [B, n, 4]; values after it
    [B, n, variables].

    Values stay in 0 .. LARGEST: a sum outside becomes a difference, a difference a sum; if both are
    outside, the other variable is copied.
    """
    num_texts = len(first)
    rows = np.arange(num_texts)
    value = first.copy()
    target = rng.integers(0, NUM_VARIABLES, (num_texts, most))
    other = (target + rng.integers(1, NUM_VARIABLES, target.shape)) % NUM_VARIABLES
    kind = rng.choice(len(_WEIGHTS), target.shape, p=_WEIGHTS)
    step = rng.integers(1, _STEP + 1, target.shape)
    fresh = rng.integers(0, LARGEST + 1, target.shape)
    details = np.zeros((num_texts, most, 4), dtype=np.int64)
    values = np.zeros((num_texts, most, NUM_VARIABLES), dtype=np.int64)
    for index in range(most):
        own, its = value[rows, target[:, index]], value[rows, other[:, index]]
        way = kind[:, index].copy()
        amount = np.where(way >= _ADD_OTHER, its, step[:, index])
        is_less = np.isin(way, (_TAKE, _TAKE_OTHER))
        is_less = np.where(is_less, own - amount >= 0, own + amount > LARGEST)
        changed = np.where(is_less, own - amount, own + amount)
        is_bad = (way >= _ADD) & ((changed < 0) | (changed > LARGEST))
        way = np.where(is_bad, _COPY, way)
        changed = np.where(way == _CONST, fresh[:, index], np.where(way == _COPY, its, changed))
        constant = np.where(way == _CONST, fresh[:, index], step[:, index])
        details[:, index] = np.stack((way, other[:, index], constant, is_less), axis=1)
        value[rows, target[:, index]] = changed
        values[:, index] = value
    return target, details, values
