"""Reads examples from files with a JSON object on each line.

    chat     {"prompt": "Explain how a boat works.", "answer": "A boat .."}
    jsonl    {"prompt": "A coin lies heads up. Bob tosses it. Which side is up?", "answer": "tails.",
              "thoughts": [{"at": 33, "text": "tails"}]}

`at` is the character of the prompt from which on the thought can be known. A thought may have `state`, all
that holds then, for models that carry their states, and `at_once`, to be written without a delay.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError
from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep


class _Thought(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    at: int
    text: str = ""
    state: str = ""
    at_once: bool = False


class _Line(msgspec.Struct):
    prompt: str
    answer: str
    thoughts: list[_Thought] = []


def read_chat(path: Path) -> list[TextExample]:
    """Read prompts and answers about which nothing is thought."""
    return [TextExample(line.prompt, line.answer, (), has_chain=False) for _, line in _read_lines(path)]


def read_thoughts(path: Path) -> list[TextExample]:
    """Read prompts and answers with gold thoughts."""
    return [_example(line, f"{path}, line {number}") for number, line in _read_lines(path)]


def _example(line: _Line, where: str) -> TextExample:
    steps, last = [], 0
    for index, each in enumerate(line.thoughts):
        if not last <= each.at < len(line.prompt):
            expected = f"expected {last} to {len(line.prompt) - 1}"
            raise ConfigError(f"{where}: thoughts[{index}]: at is {each.at}; {expected}")
        last = each.at
        text, state = (f" {said}" if said else "" for said in (each.text, each.state))
        steps.append(ThoughtStep(last, text, state, each.at_once))
    return TextExample(line.prompt + QUESTION_END, f" {line.answer}", tuple(steps))


def write_thoughts(examples: list[TextExample], path: Path) -> None:
    """Write what `read_thoughts` reads."""
    lines = [
        _Line(
            each.message,
            each.answer.lstrip(),
            [
                _Thought(step.settled_at, step.thought.lstrip(), step.state.lstrip(), step.at_once)
                for step in each.steps
            ],
        )
        for each in examples
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _read_lines(path: Path) -> Iterator[tuple[int, _Line]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON lines: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line, type=_Line)
            except (msgspec.DecodeError, RecursionError) as error:
                where = f"{path}, line {number}"
                raise ConfigError(f"{where}: expected an object with prompt and answer: {error}") from error
