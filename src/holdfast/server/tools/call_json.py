"""The JSON a model writes a call in: {"name": ..., "arguments": {...}}, or "parameters", or a list of such objects.

Arguments are kept letter for letter. A call must name a tool that was offered: a JSON answer that happens to have a name is
no call.
"""

import json
import re
from collections.abc import Set
from dataclasses import dataclass

_DECODER = json.JSONDecoder(
    parse_int=str, parse_float=str
)  # numbers are of no interest, and may be very long
_SPACE = re.compile(r"[ \t\n\r]*")
_ALL_SPACE = re.compile(r"[ \t\n\r]+")
_FIRST_MEMBERS = ("name", "arguments", "parameters", "type", "id")
_HEADS = tuple(f'{bracket}{{"{name}"' for bracket in ("", "[") for name in _FIRST_MEMBERS)


@dataclass(frozen=True)
class WrittenCall:
    """A call as the model wrote it."""

    name: str
    arguments: str


def may_begin_call(head: str) -> bool:
    """Whether JSON that begins so can still be a call. Once False, it is for everything longer."""
    head = _ALL_SPACE.sub("", head)
    return any(one.startswith(head) or head.startswith(one) for one in _HEADS)


def read_calls(text: str, names: Set[str]) -> tuple[WrittenCall, ...] | None:
    """The calls of a JSON object or list; None if any of them is none. The text must be valid JSON."""
    if text[0] == "{":
        call = _read_call(text, _find_members(text, 0)[0], names)
        return None if call is None else (call,)
    calls = []
    at = _skip(text, 1)
    while text[at] != "]":
        if text[at] != "{":
            return None
        members, at = _find_members(text, at)
        call = _read_call(text, members, names)
        if call is None:
            return None
        calls.append(call)
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at
    return tuple(calls) or None


Span = tuple[int, int]


def _find_members(text: str, at: int) -> tuple[list[tuple[str, Span]], int]:
    """The members of the object at a place, each with where its value stands, and the place behind the object."""
    members = []
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, begin)
        members.append((key, (begin, end)))
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return members, at + 1


def _read_call(text: str, members: list[tuple[str, Span]], names: Set[str]) -> WrittenCall | None:
    found_names = [span for key, span in members if key == "name"]
    arguments = [span for key, span in members if key in ("arguments", "parameters")]
    if len(found_names) != 1 or len(arguments) != 1:
        return None
    name = _DECODER.decode(text[slice(*found_names[0])])
    written = text[slice(*arguments[0])]
    if not isinstance(name, str) or name not in names or not written.startswith("{"):
        return None
    return WrittenCall(name, written)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
