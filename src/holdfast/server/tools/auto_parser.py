"""Finds the calls in what a model wrote of its own accord (`tool_choice` "auto").

A call is JSON, an object or a list of them, that names a tool the client offered and has an object of arguments. It stands

    behind the format's opening marker, anywhere, and before its closing marker, another opening one, or the end; or
    at the beginning of the answer, or behind another call (a ; may come between), without a marker.

Everything else is content, letter for letter, with two exceptions: white space before a call and behind the last one is
left out, and so are calls beyond the first where only one was asked for. Text that may become a call is held back until
that is decided; what is not is given back, and looked through again behind its marker. The invariant: how the text was cut
into pieces changes nothing in what the deltas add up to. It takes steps in proportion to the text, because JSON that holds
a marker outside of a text is broken there and then (`json_scanner`): of the markers passed, at most one is still open.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.server.tools.call_json import WrittenCall, may_begin_call, read_calls
from holdfast.server.tools.deltas import ChoiceDelta, ContentDelta, ToolCallDelta, ToolCallIds, merge_content
from holdfast.server.tools.formats import ToolFormat
from holdfast.server.tools.json_scanner import JsonScanner

_SPACE = " \t\n\r"
_HEAD_CHARS = 64


@dataclass
class _Capture:
    """Text that may be a call: lead, JSON, and what stands behind it up to the closing marker."""

    is_bare: bool
    lead: list[str] = field(default_factory=list)
    scanner: JsonScanner | None = None
    json: list[str] = field(default_factory=list)
    head: str = ""  # how the JSON begins
    calls: Sequence[WrittenCall] | None = None  # what the JSON says, once it is complete
    space: list[str] = field(default_factory=list)
    marker: str = ""  # a closing or an opening marker that has begun

    def text(self) -> str:
        return "".join((*self.lead, *self.json, *self.space, self.marker))


class AutoToolParser:
    """Reads one answer. `names` are the tools that may be called."""

    def __init__(
        self, tool_format: ToolFormat, names: Iterable[str], ids: ToolCallIds, *, parallel: bool = True
    ) -> None:
        self._format = tool_format
        self._names = frozenset(names)
        self._ids = ids
        self._parallel = parallel
        self._num_calls = 0
        self._todo: list[tuple[str, int]] = []  # texts and where to go on in them; the last is the next
        self._deltas: list[ChoiceDelta] = []
        self._space: list[str] = []  # white space held back, because a call may follow
        self._marker = ""  # an opening marker that has begun
        self._may_be_bare = True  # whether a call may begin here without a marker
        self._open: _Capture | None = None

    def feed(self, text: str) -> list[ChoiceDelta]:
        self._todo.append((text, 0))
        self._run()
        return self._take_deltas()

    def finish(self) -> list[ChoiceDelta]:
        while self._open is not None:
            if self._open.calls is None:
                self._give_back(self._open)
                self._run()
            else:  # all but its closing marker
                marker = self._open.marker
                self._call(self._open.calls)
                self._marker = "" if self._format.closing.startswith(marker) else marker
        self._say(self._marker)
        self._marker = ""
        if not self._num_calls:
            self._deltas += [ContentDelta("".join(self._space))] if self._space else []
        self._space = []
        return self._take_deltas()

    def _take_deltas(self) -> list[ChoiceDelta]:
        deltas, self._deltas = self._deltas, []
        return merge_content(deltas)

    def _run(self) -> None:
        while self._todo:
            text, at = self._todo.pop()
            if at == len(text):
                continue
            if self._open is not None:
                self._capture(self._open, text, at)
            elif self._marker:
                self._go_on_with_marker(text, at)
            elif self._may_be_bare:
                self._look_for_bare(text, at)
            else:
                self._look_for_marker(text, at)

    # Outside of a call. Each takes some of the text and leaves the rest to do.

    def _look_for_bare(self, text: str, at: int) -> None:
        begin = _skip_space(text, at)
        self._space.append(text[at:begin])
        self._todo.append((text, begin))
        if begin == len(text):
            return
        if text[begin] in "{[" or (text[begin] == ";" and self._num_calls):
            self._open = _Capture(is_bare=True)
        else:
            self._may_be_bare = False

    def _look_for_marker(self, text: str, at: int) -> None:
        opening = self._format.opening
        found = text.find(opening, at)
        if found >= 0:
            self._say(text[at:found])
            self._open = _Capture(is_bare=False)
            self._todo.append((text, found + len(opening)))
            return
        last = text.rfind(opening[0], max(at, len(text) - len(opening) + 1))
        if last < 0 or not opening.startswith(text[last:]):
            last = len(text)
        self._say(text[at:last])
        self._marker = text[last:]

    def _go_on_with_marker(self, text: str, at: int) -> None:
        rest = self._format.opening[len(self._marker) :]
        piece = text[at : at + len(rest)]
        if not rest.startswith(piece):
            self._say(self._marker)
            self._marker = ""
            self._todo.append((text, at))
            return
        self._marker += piece
        self._todo.append((text, at + len(piece)))
        if piece == rest:
            self._marker, self._open = "", _Capture(is_bare=False)

    def _say(self, text: str) -> None:
        """ContentDelta, but for the white space at its end."""
        said = text.rstrip(_SPACE)
        if said:
            self._deltas.append(ContentDelta("".join((*self._space, said))))
            self._space = []
        if len(said) < len(text):
            self._space.append(text[len(said) :])

    # Inside of what may be a call.

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
            open_.scanner = JsonScanner()  # which sees at once if it is none
        open_.lead.append(text[at:begin])
        self._todo.append((text, begin))

    def _scan(self, open_: _Capture, scanner: JsonScanner, text: str, at: int) -> None:
        end = scanner.feed(text, at)
        piece = text[at:end]
        open_.json.append(piece)
        open_.head += piece[: _HEAD_CHARS - len(open_.head)]
        self._todo.append((text, end))
        if scanner.broken or (open_.is_bare and not may_begin_call(open_.head)):
            self._give_back(open_)
        elif scanner.ended:
            open_.calls = read_calls("".join(open_.json), self._names)
            if open_.calls is None:
                self._give_back(open_)
            elif open_.is_bare or not self._format.closing:
                self._call(open_.calls)

    def _close(self, open_: _Capture, text: str, at: int) -> None:
        if not open_.marker:
            begin = _skip_space(text, at)
            open_.space.append(text[at:begin])
            at = begin
        marker = open_.marker + text[at : at + 1]
        closing, opening = self._format.closing, self._format.opening
        if not closing.startswith(marker) and not opening.startswith(marker):
            self._todo.append((text, at))
            self._give_back(open_)
            return
        open_.marker = marker
        self._todo.append((text, min(at + 1, len(text))))
        if marker in (closing, opening):
            assert open_.calls is not None
            self._call(open_.calls)
            self._open = None if marker == closing else _Capture(is_bare=False)

    def _give_back(self, open_: _Capture) -> None:
        """It is no call: its marker is content, and behind it there may be another."""
        self._open, self._may_be_bare = None, False
        if not open_.is_bare:
            self._say(self._format.opening)
        self._todo.append((open_.text(), 0))

    def _call(self, calls: Sequence[WrittenCall]) -> None:
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
