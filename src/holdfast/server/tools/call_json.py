"""Reads calls from JSON: {"name": ..., "arguments": {...}}, or "parameters" instead, or a list of
such objects.

Arguments keep the exact text the model wrote. The name must be one of the request's tools: other
JSON with a "name" is content, not a call.
"""

import json
import re
from collections.abc import Set
from dataclasses import dataclass

_DECODER = json.JSONDecoder(
    parse_int=str, parse_float=str
)  # numbers are not converted: they may be very long
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
    """Return whether JSON with this beginning can still be a call.

    Once False, it stays False for longer beginnings.
    """
    head = _ALL_SPACE.sub("", head)
    return any(one.startswith(head) or head.startswith(one) for one in _HEADS)


def read_calls(text: str, names: Set[str]) -> tuple[WrittenCall, ...] | None:
    """Return the calls in a JSON object or list; None if any element is not a call.

    The text must be valid JSON.
    """
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


Range = tuple[int, int]  # of the text


def _find_members(text: str, at: int) -> tuple[list[tuple[str, Range]], int]:
    """Return the members of the object at an index, each with the range of its value, and the index after
    the object.
    """
    members = []
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)  # after the colon
        _, end = _DECODER.raw_decode(text, begin)
        members.append((key, (begin, end)))
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return members, at + 1


def _read_call(text: str, members: list[tuple[str, Range]], names: Set[str]) -> WrittenCall | None:
    found_names = [where for key, where in members if key == "name"]
    arguments = [where for key, where in members if key in ("arguments", "parameters")]
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
