"""GSM8K: questions as JSON lines, whose answers carry their calculations as <<48/2=24>> and end with #### 72.

Every calculation is a thought. It is placed at the end of the sentence in which the last of its numbers is read, because
the sentence says what is done with them ("half as many"): a number of the question where it first stands there, the
result of an earlier calculation where that one was thought. A calculation none of whose numbers the question writes in
digits is thought at the question's end, and none before one it follows. That is a guess at where it can be inferred,
the earliest the annotations allow.
"""

import json
import re
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.training.tasks.text_examples import Step, TextExample

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
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            held = json.loads(line)
            question, answer = held["question"], held["answer"]
            final = _FINAL.search(answer)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {place} holds no question and answer: {error}") from error
        if final is None:
            raise ConfigError(f"{path}, line {place}: the answer does not end with ####")
        examples.append(TextExample(f"{question} A:", f" {final[1]}", _steps(question, answer)))
    return examples


def _steps(question: str, answer: str) -> tuple[Step, ...]:
    known: dict[float, int] = {}  # a number, and the character with which it is known
    for found in _NUMBER.finditer(question):
        known.setdefault(_value(found[0]), found.end() - 1)
    steps: list[Step] = []
    earliest = 0
    for calculation, result in _CALCULATION.findall(answer):
        needed = [known[value] for value in map(_value, _NUMBER.findall(calculation)) if value in known]
        last = max(needed, default=len(question) - 1)
        end = _SENTENCE_END.search(question, last)
        earliest = max(earliest, len(question) - 1 if end is None else end.start())
        steps.append(Step(earliest, f" {calculation}={result}"))
        if _NUMBER.fullmatch(result):
            known.setdefault(_value(result), earliest)
    return tuple(steps)


def _value(text: str) -> float:
    return float(text.replace(",", ""))
