"""Texts as people type them: with letters astray, in capitals, with the question first.

Each thought stays at its word.
"""

import random
import re
from collections.abc import Callable
from dataclasses import replace

from holdfast_thinking.data.text_examples import TextExample

_PIECES = re.compile(r"[^\W\d_]+|.", re.DOTALL)
_WORDS = re.compile(r"[^\W\d_]+")
_QUESTION_LAST = re.compile(r"(.*[.;!\n])\s+([^.;!\n]+\?)", re.DOTALL)
_KEYS = "qwertyuiopasdfghjklzxcvbnm"
_CAPITALS, _ASTRAY, _FIRST = 0.2, 0.28, 0.15  # shares of texts
_LONGEST = 300  # characters; a text in capitals may have as many tokens


def typed(example: TextExample, rng: random.Random) -> TextExample:
    """Return the example as somebody may type it. Most are as they were."""
    if rng.random() < _FIRST:
        example = _question_first(example)
    kind = rng.random() if len(example.prompt) <= _LONGEST else 0.5
    if kind < _CAPITALS:

        def sometimes_upper(word: str) -> str:
            return word.upper() if rng.random() < 0.3 else word

        return _in_capitals(
            example, rng.choice((*(str.upper,) * 3, str.lower, str.capitalize, sometimes_upper))
        )
    if kind > 1 - _ASTRAY:
        share, kept = rng.choice((0.1, 0.2, 0.4)), _said(example) - {"heads", "tails"}
        return _changed(example, lambda word: word if word in kept else _slip(word, share, rng))
    return example


def _question_first(example: TextExample) -> TextExample:
    found = _QUESTION_LAST.fullmatch(example.message)
    if found is None or any(step.settled_at >= len(found[1]) for step in example.steps):
        return example
    shift, end = len(found[2]) + 1, example.prompt[len(example.message) :]
    steps = tuple(replace(each, settled_at=each.settled_at + shift) for each in example.steps)
    return replace(example, prompt=f"{found[2]} {found[1]}{end}", steps=steps)


def _in_capitals(example: TextExample, change: Callable[[str], str]) -> TextExample:
    """Return the text in capitals; what is thought of variables too, if one letter names each."""
    thoughts = "".join(step.thought + step.state for step in example.steps)
    if not re.search(r"\d", thoughts):
        return _changed(example, change)
    if change is not str.upper or max(map(len, _WORDS.findall(thoughts))) > 1:
        return example
    steps = tuple(
        replace(each, thought=each.thought.upper(), state=each.state.upper()) for each in example.steps
    )
    return _changed(replace(example, steps=steps), change)


def _said(example: TextExample) -> set[str]:
    """Return the words of the answer and of what is thought."""
    return set(_WORDS.findall(" ".join((example.answer, *(step.thought for step in example.steps)))))


def _changed(example: TextExample, change: Callable[[str], str]) -> TextExample:
    text, places = "", list[int]()
    for piece in _PIECES.findall(example.message):
        new = change(piece)
        first = len(text) + len(new) - len(piece)
        places += [max(0, len(text) - 1, first + index) for index in range(len(piece))]
        text += new
    steps = tuple(
        replace(each, settled_at=places[min(each.settled_at, len(places) - 1)]) for each in example.steps
    )
    return replace(example, prompt=text + example.prompt[len(example.message) :], steps=steps)


def _slip(word: str, share: float, rng: random.Random) -> str:
    """Return the word with two letters exchanged, one left out, doubled, or its neighbour on the keyboard."""
    if len(word) < 2 or rng.random() > share:
        return "" if word == " " and rng.random() < share / 20 else word
    at = rng.randrange(len(word) - 1)
    one, other = word[at], word[at + 1]
    near = _KEYS[(_KEYS.find(other) + 1) % len(_KEYS)]
    return (
        word[:at]
        + rng.choice((other + one, other + one, one, one, one + 2 * other, one + near))
        + word[at + 2 :]
    )
