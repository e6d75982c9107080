"""GSM8K: questions as JSON lines; answers have calculations such as <<48/2=24>> and end with ####
72.

Every calculation is a thought. It is placed at the end of the sentence with the last of its
numbers, because the sentence says what to do with them ("half as many"). A number of the question is
known where it stands, in digits or as a word; where it stands twice, its second use needs the second
place. The result of an earlier calculation is known where that calculation is placed. A calculation
with a number that the question does not have is placed at the end of the question. No calculation is
placed before an earlier one. This is an estimate of the earliest place where it can be inferred.

Most calculations are placed where the question ends. An instruction follows it, and the answer starts
with three words, so that there are chunks for them before the number.

    python benchmarks/thinking/gsm8k.py train.jsonl gsm8k_train.jsonl    # for the task jsonl:FILE
"""

import json
import re
import sys
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast_thinking.data.jsonl import write_thoughts
from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep

_CALCULATION = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_SENTENCE_END = re.compile(r"[.?!](?=\s|$)")
_FINAL = re.compile(r"####\s*(\S.*?)\s*$")
_INSTRUCTION = " Work it out while you read, and give only the final number as the answer."
_MEANINGS = (  # words, and the number they stand for in a calculation
    (1, "one"), (2, "two"), (3, "three"), (4, "four"), (5, "five"), (6, "six"), (7, "seven"), (8, "eight"),
    (9, "nine"), (10, "ten"), (11, "eleven"), (12, "twelve"),
    (15, "fifteen"), (20, "twenty"), (30, "thirty"), (40, "forty"), (50, "fifty"), (100, "hundred"),
    (2, "half"), (2, "halves"), (2, "twice"), (2, "double"), (2, "doubles"), (2, "doubled"), (2, "couple"),
    (2, "pair"), (2, "both"), (2, "second"), (3, "triple"), (3, "thrice"), (3, "third"), (3, "thirds"),
    (4, "quarter"), (4, "quarters"), (4, "fourth"), (4, "fourths"), (5, "fifth"), (5, "fifths"), (12, "dozen"),
    (12, "dozens"), (7, "week"), (7, "weeks"), (7, "weekly"), (12, "year"), (12, "years"), (12, "yearly"),
    (24, "day"), (60, "hour"), (60, "hours"), (60, "minute"), (60, "minutes"), (100, "percent"), (100, "%"),
)  # fmt: skip
_WORDS = re.compile(r"[a-z]+|%")


def read_gsm8k(path: Path) -> list[TextExample]:
    """All questions of a file."""
    examples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields = json.loads(line)
            question, answer = fields["question"], fields["answer"]
            final, steps = _FINAL.search(answer), _steps(question, answer)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: expected question and answer: {error!r}") from error
        if final is None:
            raise ConfigError(f"{path}, line {number}: the answer does not end with ####")
        prompt = f"{question}{_INSTRUCTION}{QUESTION_END}"
        examples.append(TextExample(prompt, f" The answer is {final[1]}.", steps))
    return examples


def _steps(question: str, answer: str) -> tuple[ThoughtStep, ...]:
    places = _places(question)
    steps: list[ThoughtStep] = []
    end_of_question = len(question) - 1
    earliest = 0
    for calculation, result in _CALCULATION.findall(answer):
        last = max(
            (_take(places, value, end_of_question) for value in _values(calculation)), default=end_of_question
        )
        end = _SENTENCE_END.search(question, last)
        earliest = max(earliest, end_of_question if end is None else end.start())
        steps.append(ThoughtStep(earliest, f" {calculation}={result}"))
        if _NUMBER.fullmatch(result):
            places[_value(result)] = [earliest]
    return tuple(steps)


def _places(question: str) -> dict[float, list[int]]:
    """The last characters of every number of the question, by value, from the first to the last."""
    values = dict[str, list[float]]()
    for number, word in _MEANINGS:
        values.setdefault(word, []).append(float(number))
    found = [(each.end() - 1, _value(each[0])) for each in _NUMBER.finditer(question)]
    for each in _WORDS.finditer(question.lower()):
        found += [(each.end() - 1, value) for value in values.get(each[0], ())]
    places: dict[float, list[int]] = {}
    for place, value in sorted(found):
        places.setdefault(value, []).append(place)
    return places


def _take(places: dict[float, list[int]], value: float, otherwise: int) -> int:
    """Where the value is known; the next use of it needs its next place."""
    at = places.get(value)
    if at is None:
        return otherwise
    return at.pop(0) if len(at) > 1 else at[0]


def _values(calculation: str) -> list[float]:
    return [_value(each) for each in _NUMBER.findall(calculation)]


def _value(text: str) -> float:
    return float(text.replace(",", ""))


if __name__ == "__main__":
    write_thoughts(read_gsm8k(Path(sys.argv[1])), Path(sys.argv[2]))
