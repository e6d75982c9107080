"""GSM8K as a task: questions with thoughts after them, and the same questions with other numbers.

Most of what is said in a question gets its use from the last sentence: what is asked for. So nothing is thought
about the question itself. Letters follow it, chunks of eight, and each of these chunks has one thought: in turn what is
to be calculated and what that gives.

    Ann has 48 clips. She sells half of them, and then 5 more. How many are left? . . .
     a b c d e f g h   ‹48/2›
     a b c d e f g h   ‹24›
     a b c d e f g h   ‹24-5›
     a b c d e f g h   ‹19›
     a b c d e f g h   A: 19

A thought that holds a calculation together with its result would have to be known before T writes its first digit. Here
the calculation is in the state of the next chunk, and the whole backbone reads it before T writes the result. The
letters begin at a chunk's first token, so that each letter has one place in its chunk: the backbone can keep the n-th
token of the thought at the n-th letter. Sums of several terms are several calculations.

    none       question A: 19
    chain      question A: She sells 48/2 = 24 clips. Then she has 24-5 = 19 clips. So 19
    thinking   question and letters A: 19

The data set's folder, with train.jsonl and test.jsonl, is named by the environment variable GSM8K.
"""

import ast
import json
import operator
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from holdfast.models.locate import locate
from holdfast_thinking.data.text_examples import TextExample, ThoughtStep
from holdfast_thinking.model.build import open_backend
from holdfast_thinking.settings import TrainingSettings

CHUNK, MOST_STEPS = 8, 8  # tokens of a chunk; calculations for which there are letters
_LETTERS = " a b c d e f g h"
_HELD_OUT = 473  # the last questions of train.jsonl
_STORIES, _NEW_NUMBERS = 0.3, 0.6  # shares of the training texts
_FULL_LENGTH = 0.2  # share of the training texts with all letters; others have few more than they need
_TRIES = 30
_CALCULATION = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d*\.\d+|\d+")
_OPERATIONS = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
}
# Numbers that a text may mean with a word: half, a dozen, a week, per cent. They stay as they are.
_FIXED = frozenset(map(Fraction, (0, 1, 2, 3, 4, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000)))


@dataclass(frozen=True)
class Step:
    """A calculation of two numbers. symbol: + - * or /."""

    left: Fraction
    symbol: str
    right: Fraction
    result: Fraction


@dataclass(frozen=True)
class Problem:
    """A question. words: its solution in words. steps: None if it cannot be split into exact calculations."""

    question: str
    words: str
    steps: tuple[Step, ...] | None
    final: str


def read_problems(path: Path) -> list[Problem]:
    """Read a file of the data set."""
    return [parse_problem(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def parse_problem(fields: dict[str, str]) -> Problem:
    solution, _, final = fields["answer"].rpartition("####")
    words = " ".join(_CALCULATION.sub("", solution).split())
    final = final.strip().replace(",", "")
    steps = _split_all(_CALCULATION.findall(solution))
    if not steps or steps[-1].result != value_of(final):
        steps = None
    return Problem(" ".join(fields["question"].split()), words, steps, final)


def value_of(text: str) -> Fraction | None:
    """Return the last number of a text."""
    found = _NUMBER.findall(text)
    return Fraction(found[-1].replace(",", "")) if found else None


def shown(value: Fraction) -> str | None:
    """Return a number as a decimal. None if it has more than four decimals, or is negative."""
    scaled = value * 10_000
    if value < 0 or scaled.denominator != 1:
        return None
    return str(value) if value.denominator == 1 else f"{float(value):.4f}".rstrip("0")


def _split_all(calculations: list[tuple[str, str]]) -> tuple[Step, ...] | None:
    """Split calculations into those of two numbers. None if one of them is not exact or not what it says."""
    steps: list[Step] = []
    for text, result in calculations:
        try:
            value = _split(ast.parse(text.strip().lstrip("+0 ") or "0", mode="eval").body, steps)
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None
        if value != value_of(result):
            return None
    return tuple(steps)


def _split(node: ast.expr, steps: list[Step]) -> Fraction:
    """Return the value of an expression, and add its calculations."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        raise ValueError("no calculation")
    symbol, compute = _OPERATIONS[type(node.op)]
    left, right = _split(node.left, steps), _split(node.right, steps)
    result = Fraction(compute(left, right))
    if None in map(shown, (left, right, result)):
        raise ValueError("no short decimal")
    steps.append(Step(left, symbol, right, result))
    return result


def renumber(problem: Problem, rng: random.Random) -> Problem:
    """Give a question other numbers. Its results change with them, and stay whole where they were."""
    numbers = {Fraction(each.replace(",", "")): None for each in _NUMBER.findall(problem.question)}
    free = [each for each in numbers if each.denominator == 1 and each not in _FIXED]
    for _ in range(_TRIES if free and problem.steps else 0):
        changed = {each: _draw(int(each), rng) for each in free}
        values = {each: changed.get(each, each) for each in numbers}
        steps = _recalculate(problem.steps or (), values)
        if steps:
            question, words = _rewrite(problem.question, changed), _rewrite(problem.words, values)
            return Problem(question, words, steps, shown(steps[-1].result) or "")
    return problem


def _draw(value: int, rng: random.Random) -> Fraction:
    unit = 10 if value % 10 == 0 else 5 if value % 5 == 0 else 1
    return Fraction(unit * rng.randint(max(1, value // (2 * unit)), max(2, 2 * value // unit)))


def _recalculate(steps: tuple[Step, ...], values: dict[Fraction, Fraction]) -> tuple[Step, ...] | None:
    """Repeat the calculations with other values, and add the results to these. None if one is implausible, or if
    a number of the old text now stands for two."""
    found = []
    for step in steps:
        if not {step.left, step.right} <= values.keys() | _FIXED:
            return None  # a number that comes from nowhere
        left, right = (values.get(each, each) for each in (step.left, step.right))
        result = Fraction(_OPERATION_OF[step.symbol](left, right)) if right else Fraction(-1)
        is_whole = result.denominator == 1 or step.result.denominator != 1
        if result <= 0 or shown(result) is None or not is_whole:
            return None
        if step.result in _FIXED and result != step.result:
            return None
        if values.setdefault(step.result, result) != result:
            return None
        found.append(Step(left, step.symbol, right, result))
    return tuple(found)


_OPERATION_OF = dict(_OPERATIONS.values())


def _rewrite(text: str, values: dict[Fraction, Fraction]) -> str:
    def replaced(found: re.Match[str]) -> str:
        value = Fraction(found[0].replace(",", ""))
        return shown(values[value]) or found[0] if value in values else found[0]

    return _NUMBER.sub(replaced, text)


_NAMES = ("Ann", "Bob", "Eve", "Joe", "Mia", "Sam", "Lily", "Omar", "Tina", "Raj")
_THINGS = ("apples", "books", "clips", "coins", "cards", "shells", "pens", "stamps", "dollars", "marbles")
_CHANGES = {  # (symbol, what is told, the solution in words)
    "+": (("{who} gets {n} more {things}.", "{who} finds {n} {things}."), "{who} then has {step} {things}."),
    "-": (
        ("{who} gives away {n} {things}.", "{who} loses {n} of the {things}."),
        "{step} {things} are left.",
    ),
    "*": (("{who} then has {n} times as many {things}.",), "That makes {step} {things}."),
    "/": (
        ("{who} shares them equally among {n} friends and looks at one share.",),
        "Each has {step} {things}.",
    ),
}


def make_story(rng: random.Random) -> Problem:
    """Make a short question about one person's things, with one to four calculations."""
    who, things = rng.choice(_NAMES), rng.choice(_THINGS)
    value = rng.randint(2, 120)
    told, words, steps = [f"{who} has {value} {things}."], [], list[Step]()
    for _ in range(rng.randint(1, 4)):
        symbol, n = _change(value, rng)
        telling, said = _CHANGES[symbol]
        result = int(_OPERATION_OF[symbol](Fraction(value), Fraction(n)))
        told.append(rng.choice(telling).format(who=who, n=n, things=things))
        words.append(said.format(who=who, things=things, step=f"{value} {symbol} {n} = {result}"))
        steps.append(Step(Fraction(value), symbol, Fraction(n), Fraction(result)))
        value = result
    told.append(f"How many {things} are there in the end?")
    return Problem(" ".join(told), " ".join(words), tuple(steps), str(value))


def _change(value: int, rng: random.Random) -> tuple[str, int]:
    divisors = [each for each in range(2, 13) if value % each == 0 and value > each]
    kind = rng.choice("+-*/")
    if kind == "/" and divisors:
        return "/", rng.choice(divisors)
    if kind == "*" and value < 200:
        return "*", rng.randint(2, 9)
    if kind == "-" and value > 2:
        return "-", rng.randint(1, value - 1)
    return "+", rng.randint(2, 150)


class Gsm8k:
    """The task: questions of the training file, some with other numbers, and short stories."""

    has_events = False

    def __init__(self, settings: TrainingSettings) -> None:
        assert settings.backbone is not None
        self._form = settings.form
        self._tokenizer = open_backend(locate(settings.backbone).path)
        problems = read_problems(Path(os.environ["GSM8K"]) / "train.jsonl")
        self._held_out = problems[-_HELD_OUT:]
        self._training = [each for each in problems[:-_HELD_OUT] if self._is_taught(each)]

    def _is_taught(self, problem: Problem) -> bool:
        return problem.steps is not None and len(problem.steps) <= MOST_STEPS

    def words(self) -> list[str]:
        return []

    def example(self, rng: random.Random, events: int) -> TextExample:
        kind = rng.random()
        problem = make_story(rng) if kind < _STORIES else rng.choice(self._training)
        if kind > 1 - _NEW_NUMBERS:
            problem = renumber(problem, rng)
        least = 2 * len(problem.steps or ()) + 1
        is_full = rng.random() < _FULL_LENGTH
        return self.write(problem, None if is_full else min(2 * MOST_STEPS, least + rng.randrange(3)))

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        return self.write(rng.choice(self._held_out))

    def write(self, problem: Problem, chunks: int | None = None) -> TextExample:
        """Write a question in the run's form. chunks: of letters; None: as many as there can be."""
        if self._form == "cot":
            answer = f" {problem.words} So {problem.final}"
            return TextExample(f"{problem.question} A:", answer, (), has_chain=False)
        if self._form == "none":
            return TextExample(f"{problem.question} A: ", problem.final, ())
        start = problem.question + " ." * (-len(self.encode(problem.question)) % CHUNK)
        chunks = 2 * MOST_STEPS if chunks is None else chunks
        steps = tuple(
            ThoughtStep(len(start) + (index + 1) * len(_LETTERS) - 1, thought)
            for index, thought in zip(range(chunks), _thoughts(problem), strict=False)
        )
        return TextExample(f"{start}{_LETTERS * chunks} A: ", problem.final, steps)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _thoughts(problem: Problem) -> Iterator[str]:
    for step in problem.steps or ():
        yield f"{shown(step.left)}{step.symbol}{shown(step.right)}"
        yield f"{shown(step.result)}"
