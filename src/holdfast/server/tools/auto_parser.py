"""The tool parser for `tool_choice` "auto": finds calls in text that the model was free to write.

A call is JSON, an object or a list of objects, that names one of the request's tools and has an
object of arguments or parameters, which keeps the exact text the model wrote. It is

    after the format's opening marker, anywhere, and before its closing marker, another opening marker, or the end; or
    at the beginning of the text, or after another call (optionally after a ;), without a marker.

Everything else is content and is passed on unchanged, with two exceptions: white space before a
call and after the last one is dropped, and so are calls after the first if `parallel_tool_calls` is
false. Text that may become a call is held back until that is decided. If it is not a call, its
marker becomes content and the rest is scanned again.

Invariant: the merged deltas do not depend on how the text was split into chunks. The cost is linear
in the text: JSON with a marker outside of a string is invalid at once (`json_scanner`), so at most
one of the markers passed is still open.
"""

import json
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from holdfast.server.tools.deltas import ChoiceDelta, ContentDelta, ToolCallDelta, ToolCallIds, merge_texts
from holdfast.server.tools.formats import ToolFormat
from holdfast.server.tools.json_scanner import JsonScanner

_SPACE = " \t\n\r"
_HEAD_CHARS = 64
# Numbers are not converted: they may be very long.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
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
    at = _skip_space(text, 1)
    while text[at] != "]":
        if text[at] != "{":
            return None
        members, at = _find_members(text, at)
        call = _read_call(text, members, names)
        if call is None:
            return None
        calls.append(call)
        at = _skip_space(text, at)
        at = _skip_space(text, at + 1) if text[at] == "," else at
    return tuple(calls) or None


Range = tuple[int, int]  # of the text


def _find_members(text: str, at: int) -> tuple[list[tuple[str, Range]], int]:
    """Return the members of the object at an index, each with the range of its value, and the index after
    the object.
    """
    members = []
    at = _skip_space(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        begin = _skip_space(text, _skip_space(text, at) + 1)  # after the colon
        _, end = _DECODER.raw_decode(text, begin)
        members.append((key, (begin, end)))
        at = _skip_space(text, end)
        at = _skip_space(text, at + 1) if text[at] == "," else at
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


@dataclass
class _Capture:
    """Text that may be a call: leading space, JSON, and the text after it up to the closing marker."""

    is_bare: bool  # without an opening marker
    lead: list[str] = field(default_factory=list)
    scanner: JsonScanner | None = None
    json: list[str] = field(default_factory=list)
    head: str = ""  # the first characters of the JSON
    calls: Sequence[WrittenCall] | None = None  # of the JSON, once it is complete
    space: list[str] = field(default_factory=list)
    marker: str = ""  # the beginning of a closing or opening marker

    def text(self) -> str:
        return "".join((*self.lead, *self.json, *self.space, self.marker))


class AutoToolParser:
    """Parses one choice. `names` are the tools that may be called."""

    def __init__(
        self, tool_format: ToolFormat, names: Iterable[str], ids: ToolCallIds, *, parallel: bool = True
    ) -> None:
        self._format = tool_format
        self._names = frozenset(names)
        self._ids = ids
        self._parallel = parallel
        self._num_calls = 0
        self._todo: list[tuple[str, int]] = []  # stack of (text, position to continue at)
        self._deltas: list[ChoiceDelta] = []
        self._space: list[str] = []  # white space held back in case a call follows
        self._marker = ""  # the beginning of an opening marker
        self._may_be_bare = True  # whether a call may begin here without a marker
        self._open: _Capture | None = None

    def feed(self, text: str) -> list[ChoiceDelta]:
        self._todo.append((text, 0))
        self._run()
        return self._pop_deltas()

    def finish(self) -> list[ChoiceDelta]:
        while self._open is not None:
            if self._open.calls is None:
                self._reject(self._open)
                self._run()
            else:  # complete but for its closing marker
                marker = self._open.marker
                self._emit_calls(self._open.calls)
                self._marker = "" if self._format.closing.startswith(marker) else marker
        self._emit_content(self._marker)
        self._marker = ""
        if not self._num_calls:
            self._deltas += [ContentDelta("".join(self._space))] if self._space else []
        self._space = []
        return self._pop_deltas()

    def _pop_deltas(self) -> list[ChoiceDelta]:
        deltas, self._deltas = self._deltas, []
        return merge_texts(deltas)

    def _run(self) -> None:
        while self._todo:
            text, at = self._todo.pop()
            if at == len(text):
                continue
            if self._open is not None:
                self._capture(self._open, text, at)
            elif self._marker:
                text, self._marker = self._marker + text[at:], ""
                self._find_marker(text, 0)
            elif self._may_be_bare:
                self._find_bare_call(text, at)
            else:
                self._find_marker(text, at)

    # Outside of a call. Each method consumes some text and pushes the rest onto the stack.

    def _find_bare_call(self, text: str, at: int) -> None:
        begin = _skip_space(text, at)
        self._space.append(text[at:begin])
        self._todo.append((text, begin))
        if begin == len(text):
            return
        if text[begin] in "{[" or (text[begin] == ";" and self._num_calls):
            self._open = _Capture(is_bare=True)
        else:
            self._may_be_bare = False

    def _find_marker(self, text: str, at: int) -> None:
        opening = self._format.opening
        found = text.find(opening, at)
        if found >= 0:
            self._emit_content(text[at:found])
            self._open = _Capture(is_bare=False)
            self._todo.append((text, found + len(opening)))
            return
        last = text.rfind(opening[0], max(at, len(text) - len(opening) + 1))
        if last < 0 or not opening.startswith(text[last:]):
            last = len(text)
        self._emit_content(text[at:last])
        self._marker = text[last:]

    def _emit_content(self, text: str) -> None:
        """Emit content, but hold back white space at its end."""
        stripped = text.rstrip(_SPACE)
        if stripped:
            self._deltas.append(ContentDelta("".join((*self._space, stripped))))
            self._space = []
        if len(stripped) < len(text):
            self._space.append(text[len(stripped) :])

    # Inside of a possible call.

    def _capture(self, open_: _Capture, text: str, at: int) -> None:
        if open_.scanner is None:
            self._begin(open_, text, at)
        elif open_.calls is None:
            self._scan(open_, open_.scanner, text, at)
        else:
            self._close(open_, text, at)

    def _begin(self, open_: _Capture, text: str, at: int) -> None:
        begin = _skip_space(text, at)
        if begin < len(text) and text[begin] == ";" and open_.is_bare and not open_.lead:
            begin += 1
        elif begin < len(text):
            open_.scanner = JsonScanner()  # fails at once if this is no JSON
        open_.lead.append(text[at:begin])
        self._todo.append((text, begin))

    def _scan(self, open_: _Capture, scanner: JsonScanner, text: str, at: int) -> None:
        end = scanner.feed(text, at)
        part = text[at:end]
        open_.json.append(part)
        open_.head += part[: _HEAD_CHARS - len(open_.head)]
        self._todo.append((text, end))
        if scanner.failed or (open_.is_bare and not may_begin_call(open_.head)):
            self._reject(open_)
        elif scanner.ended:
            open_.calls = read_calls("".join(open_.json), self._names)
            if open_.calls is None:
                self._reject(open_)
            elif open_.is_bare or not self._format.closing:
                self._emit_calls(open_.calls)

    def _close(self, open_: _Capture, text: str, at: int) -> None:
        if not open_.marker:
            begin = _skip_space(text, at)
            open_.space.append(text[at:begin])
            at = begin
        marker = open_.marker + text[at : at + 1]
        closing, opening = self._format.closing, self._format.opening
        if not closing.startswith(marker) and not opening.startswith(marker):
            self._todo.append((text, at))
            self._reject(open_)
            return
        open_.marker = marker
        self._todo.append((text, min(at + 1, len(text))))
        if marker in (closing, opening):
            assert open_.calls is not None
            self._emit_calls(open_.calls)
            self._open = None if marker == closing else _Capture(is_bare=False)

    def _reject(self, open_: _Capture) -> None:
        """Take what is no call as content: its marker at once, the text after it is scanned again."""
        self._open, self._may_be_bare = None, False
        if not open_.is_bare:
            self._emit_content(self._format.opening)
        self._todo.append((open_.text(), 0))

    def _emit_calls(self, calls: Sequence[WrittenCall]) -> None:
        self._open, self._may_be_bare = None, True
        self._space = []
        for call in calls:
            if self._num_calls and not self._parallel:
                break
            id_ = self._ids.make(self._num_calls, call.name)
            self._deltas.append(ToolCallDelta(self._num_calls, call.arguments, id_, call.name))
            self._num_calls += 1


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
