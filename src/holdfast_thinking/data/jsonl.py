"""Reads examples from files with a JSON object on each line.

    chat     {"prompt": "Explain how a boat works.", "answer": "A boat .."}
    jsonl    {"prompt": "A coin lies heads up. Bob tosses it. Which side is up?", "answer": "tails.",
              "thoughts": [{"at": 33, "text": "tails"}]}

`at` is the character of the prompt from which on the thought can be known. A thought may have `state`, all
that holds then, for models that carry their states, and `at_once`, to be written without a delay.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep

_THOUGHT = {"at": int, "text": str, "state": str, "at_once": bool}


def read_chat(path: Path) -> list[TextExample]:
    """Read prompts and answers about which nothing is thought."""
    return [
        TextExample(fields["prompt"], fields["answer"], (), has_chain=False)
        for _, fields in read_texts(path, "prompt", "answer")
    ]


def read_thoughts(path: Path) -> list[TextExample]:
    """Read prompts and answers with gold thoughts."""
    return [_example(path, *line) for line in read_texts(path, "prompt", "answer")]


def _example(path: Path, number: int, fields: dict[str, Any]) -> TextExample:
    prompt, thoughts = fields["prompt"], fields.get("thoughts", [])
    if not isinstance(thoughts, list):
        raise ConfigError(f"{path}, line {number}: thoughts: expected a list, found {thoughts!r:.60}")
    steps, last = [], 0
    for index, each in enumerate(thoughts):
        where = f"{path}, line {number}: thoughts[{index}]"
        if not isinstance(each, dict) or "at" not in each or each.keys() - _THOUGHT.keys():
            raise ConfigError(
                f"{where}: expected an object with at and text, or state, at_once; found {each!r:.60}"
            )
        for name, value in each.items():
            if type(value) is not _THOUGHT[name]:
                raise ConfigError(f"{where}: {name} is {value!r:.60}; expected {_THOUGHT[name].__name__}")
        if not last <= each["at"] < len(prompt):
            raise ConfigError(f"{where}: at is {each['at']}; expected {last} to {len(prompt) - 1}")
        last = each["at"]
        texts = [f" {each[name]}" if each.get(name) else "" for name in ("text", "state")]
        steps.append(ThoughtStep(last, texts[0], state=texts[1], at_once=each.get("at_once", False)))
    return TextExample(f"{prompt}{QUESTION_END}", f" {fields['answer']}", tuple(steps))


def write_thoughts(examples: list[TextExample], path: Path) -> None:
    """Write what `read_thoughts` reads."""
    with path.open("w", encoding="utf-8") as file:
        for each in examples:
            thoughts = [
                {"at": step.settled_at, "text": step.thought.lstrip()}
                | ({"state": step.state.lstrip()} if step.state else {})
                | ({"at_once": True} if step.at_once else {})
                for step in each.steps
            ]
            fields = {"prompt": each.message, "answer": each.answer.lstrip(), "thoughts": thoughts}
            file.write(json.dumps(fields) + "\n")


def read_texts(path: Path, *names: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the object of each line that is not empty, with its number. These fields must be texts."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON lines: {error}") from error
    expected = f"expected a JSON object with {' and '.join(names)}"
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: {expected}: {error}") from error
        if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in names):
            raise ConfigError(f"{path}, line {number}: {expected}, both texts; found {line.strip()[:60]!r}")
        yield number, fields
