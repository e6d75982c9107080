"""Reads examples from files with a JSON object on each line.

    chat     {"prompt": "Explain how a boat works.", "answer": "A boat .."}, with or without thoughts
    jsonl    {"prompt": "A coin lies heads up. Bob tosses it. Which side is up?", "answer": "tails.",
              "thoughts": [{"at": 31, "text": "tails"}]}
             {"prompt": "A coin lies heads up. Bob tosses ‹tails› it. Which side is up?", "answer": "tails."}

`at` is the character of the prompt from which on the thought can be known. A thought may have `state`, all
that holds then, for models that carry their states, and `at_once`, to be written without a delay. A line
without `thoughts` has them in its prompt, as a terminal shows them: a mark and one space before it are no
part of the prompt.
"""

import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.errors import ConfigError
from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep

_MARK = re.compile(" ?‹([^‹›]*)›")


class Thought(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    at: int
    text: str = ""
    state: str = ""
    at_once: bool = False


class _Message(msgspec.Struct):
    prompt: str
    answer: str


class ChatLine(_Message, omit_defaults=True):
    thoughts: list[Thought] = []


_Fields = TypeVar("_Fields", bound=_Message)


class _Line(_Message, forbid_unknown_fields=True):
    thoughts: list[Thought] | msgspec.UnsetType = msgspec.UNSET


def read_chat(path: Path) -> list[TextExample]:
    """Read prompts and answers about which nothing is thought, or what a line says."""
    return [
        TextExample(
            line.prompt, line.answer, _steps(line.prompt, line.thoughts, f"{path}, line {number}"), False
        )
        for number, line in _read_lines(path, ChatLine)
    ]


def read_thoughts(path: Path) -> list[TextExample]:
    """Read prompts and answers with gold thoughts."""
    return [_example(line, f"{path}, line {number}") for number, line in _read_lines(path, _Line)]


def _example(line: _Line, where: str) -> TextExample:
    prompt, thoughts = line.prompt, line.thoughts
    if thoughts is msgspec.UNSET:
        prompt, thoughts = _read_marks(line.prompt, where)
    return TextExample(prompt + QUESTION_END, f" {line.answer}", _steps(prompt, thoughts, where))


def _steps(prompt: str, thoughts: list[Thought], where: str) -> tuple[ThoughtStep, ...]:
    steps, last = [], 0
    for index, each in enumerate(thoughts):
        if not last <= each.at < len(prompt):
            expected = f"expected {last} to {len(prompt) - 1}"
            raise ConfigError(f"{where}: thoughts[{index}]: at is {each.at}; {expected}")
        last = each.at
        text, state = (f" {said}" if said else "" for said in (each.text, each.state))
        steps.append(ThoughtStep(last, text, state, each.at_once))
    return tuple(steps)


def _read_marks(marked: str, where: str) -> tuple[str, list[Thought]]:
    """Return the prompt without its marks, and their thoughts, each at the character before its mark."""
    parts = _MARK.split(marked)
    prompt = "".join(parts[::2])
    if set(prompt) & set("‹›"):
        raise ConfigError(f"{where}: prompt: a mark has one half; expected ‹thought›, or a list of thoughts")
    ends = accumulate(map(len, parts[::2]))
    return prompt, [Thought(end - 1, said.strip()) for end, said in zip(ends, parts[1::2], strict=False)]


def _read_lines(path: Path, kind: type[_Fields]) -> Iterator[tuple[int, _Fields]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON lines: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line, type=kind)
            except (msgspec.DecodeError, RecursionError) as error:
                where = f"{path}, line {number}"
                raise ConfigError(f"{where}: expected an object with prompt and answer: {error}") from error
