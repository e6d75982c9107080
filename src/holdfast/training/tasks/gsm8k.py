"""GSM8K: questions as JSON lines; answers have calculations such as <<48/2=24>> and end with ####
72.

Every calculation is a thought. It is placed at the end of the sentence with the last of its
numbers, because the sentence says what to do with them ("half as many"). A number of the question
is known where it first appears, the result of an earlier calculation where that calculation is
placed. A calculation without a number in digits is placed at the end of the question. No
calculation is placed before an earlier one. This is an estimate of the earliest place where it can
be inferred. The answer starts with three words, so that a thought at the end of the question is
written before the number.
"""

import json
import re
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.training.tasks.text_examples import QUESTION_END, TextExample, ThoughtStep

_CALCULATION = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_SENTENCE_END = re.compile(r"[.?!](?=\s|$)")
_FINAL = re.compile(r"####\s*(\S.*?)\s*$")


def read_gsm8k(path: Path) -> list[TextExample]:
    """All questions of a file."""
    examples = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON lines: {error}") from error
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            question, answer = fields["question"], fields["answer"]
            final = _FINAL.search(answer)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {line_number} has no question and answer: {error}") from error
        if final is None:
            raise ConfigError(f"{path}, line {line_number}: the answer does not end with ####")
        examples.append(
            TextExample(f"{question}{QUESTION_END}", f" The answer is {final[1]}.", _steps(question, answer))
        )
    return examples


def _steps(question: str, answer: str) -> tuple[ThoughtStep, ...]:
    known: dict[float, int] = {}  # number -> the character of the question after which it is known
    for found in _NUMBER.finditer(question):
        known.setdefault(_value(found[0]), found.end() - 1)
    steps: list[ThoughtStep] = []
    earliest = 0
    for calculation, result in _CALCULATION.findall(answer):
        needed = [known[value] for value in map(_value, _NUMBER.findall(calculation)) if value in known]
        last = max(needed, default=len(question) - 1)
        end = _SENTENCE_END.search(question, last)
        earliest = max(earliest, len(question) - 1 if end is None else end.start())
        steps.append(ThoughtStep(earliest, f" {calculation}={result}"))
        if _NUMBER.fullmatch(result):
            known.setdefault(_value(result), earliest)
    return tuple(steps)


def _value(text: str) -> float:
    return float(text.replace(",", ""))
