"""The parser of harmony, the format of gpt-oss: an answer is a list of messages, each with a channel.

    <|channel|>analysis<|message|> ... <|end|>                        thinking
    <|start|>assistant<|channel|>commentary<|message|> ... <|end|>    content: a preamble
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|> ... <|return|>      content: the answer

The prompt ends in the header of the first message. The recipient `to=` may also stand before the
channel. Only special tokens are markup; the same characters written by ordinary tokens are text. A
message is a call if its recipient is one of the request's tools and its text is a JSON object. Any
other recipient or channel, a header without a message, and a call with broken JSON are content, with
their header as it was written. Two messages of the same kind are joined with a line break.

Invariant: the merged deltas do not depend on how the text was split into chunks.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from holdfast.server.reasoning.formats import HARMONY
from holdfast.server.reasoning.token_pieces import Piece
from holdfast.server.tools.deltas import (
    ChoiceDelta,
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallIds,
    merge_texts,
)
from holdfast.server.tools.json_scanner import JsonScanner

_MAX_HEADER_CHARS = 256  # a longer one is content
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")
_SPACE = " \t\n\r"


class _Part(Enum):
    HEADER = auto()  # not known yet
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    BETWEEN = auto()  # after the end of a message


class HarmonyParser:
    """Parses one choice. `names` are the tools that may be called.

    header: the pieces of the prompt after its last <|start|>. is_forced: a grammar allows only
    calls, so that their arguments are sent as they arrive.
    """

    def __init__(
        self,
        names: Iterable[str],
        ids: ToolCallIds,
        *,
        header: Iterable[Piece] = (),
        parallel: bool = True,
        is_forced: bool = False,
    ) -> None:
        self._names = frozenset(names)
        self._ids = ids
        self._parallel = parallel
        self._is_forced = is_forced
        self._num_calls = 0
        self._num_messages = 0
        self._last_messages: dict[type, int] = {}  # the last message with text of a kind
        self._deltas: list[ChoiceDelta] = []
        self._part = _Part.HEADER
        self._given: tuple[Piece, ...] = ()  # the prompt's part of the header
        self._header: list[Piece] = []
        self._header_len = 0
        self._call = ""  # the name in the header
        self._arguments: list[str] = []
        self.num_reasoning_tokens = 0
        self.num_hidden_tokens = 0
        self._read_prompt(header)

    @property
    def is_in_header(self) -> bool:
        """Whether the channel of the current message is still open."""
        return self._part is _Part.HEADER

    def feed(self, pieces: Iterable[Piece]) -> list[ChoiceDelta]:
        for piece in pieces:
            self._feed(piece)
        return self._pop_deltas()

    def finish(self) -> list[ChoiceDelta]:
        self._end_message()
        return self._pop_deltas()

    def _pop_deltas(self) -> list[ChoiceDelta]:
        deltas, self._deltas = self._deltas, []
        return merge_texts(deltas)

    def _read_prompt(self, header: Iterable[Piece]) -> None:
        for piece in header:
            self._feed(piece)
        self._given, self._header, self._header_len = tuple(self._header), [], 0
        self._deltas, self._last_messages = [], {}
        self.num_reasoning_tokens = self.num_hidden_tokens = 0

    def _feed(self, piece: Piece) -> None:
        if self._part is _Part.REASONING:
            self.num_reasoning_tokens += piece.num_tokens
            self.num_hidden_tokens += piece.num_tokens
        if piece.control and piece.text == HARMONY.start:
            self._end_message()
            self._begin_header(piece)
        elif piece.control and piece.text in HARMONY.ends:
            self._end_message()
        elif self._part is _Part.HEADER:
            self._feed_header(piece)
        elif piece.control and piece.text == HARMONY.channel and self._part is _Part.BETWEEN:
            self._begin_header(piece)
        elif piece.text:
            self._add_text(piece.text)

    def _begin_header(self, piece: Piece) -> None:
        self._part, self._given, self._header, self._header_len = _Part.HEADER, (), [piece], 0
        self._num_messages += 1

    def _feed_header(self, piece: Piece) -> None:
        self._header.append(piece)
        if piece.control and piece.text == HARMONY.message:
            self._end_header()
        elif not piece.control:
            self._header_len += len(piece.text)
            if self._header_len > _MAX_HEADER_CHARS:
                self._reject_header()

    def _end_header(self) -> None:
        role, channel, recipient = _read_header([*self._given, *self._header])
        num_tokens = sum(one.num_tokens for one in self._header)
        name = None if recipient is None else recipient.removeprefix("functions.")
        if role not in ("", "assistant"):
            self._reject_header()
        elif name is not None and name in self._names:
            self._part, self._call, self._arguments = _Part.CALL, name, []
            if self._is_forced:
                self._begin_call("")
        elif name is None and channel == "analysis":
            self._part = _Part.REASONING
            self.num_reasoning_tokens += num_tokens
            self.num_hidden_tokens += num_tokens
        elif name is None and channel in ("", "commentary", "final"):
            self._part = _Part.CONTENT
            self.num_hidden_tokens += num_tokens
        else:
            self._reject_header()

    def _reject_header(self) -> None:
        """Take a header that is none as content, and so what follows."""
        self._part = _Part.CONTENT
        self._emit(ContentDelta, "".join(one.text for one in self._header))

    def _add_text(self, text: str) -> None:
        if self._part is _Part.CALL and not self._is_forced:
            self._arguments.append(text)
        elif self._part is _Part.CALL:
            self._deltas.append(ToolCallDelta(self._num_calls - 1, text))
        elif self._part is _Part.REASONING:
            self._emit(ReasoningDelta, text)
        else:
            if self._part is _Part.BETWEEN:
                self._part, self._num_messages = _Part.CONTENT, self._num_messages + 1
            self._emit(ContentDelta, text)

    def _emit(self, kind: type[ReasoningDelta] | type[ContentDelta], text: str) -> None:
        if not text:
            return
        is_next = self._last_messages.get(kind, self._num_messages) < self._num_messages
        self._last_messages[kind] = self._num_messages
        self._deltas.append(kind(f"\n{text}" if is_next else text))

    def _end_message(self) -> None:
        if self._part is _Part.HEADER:
            self._reject_header()
        elif self._part is _Part.CALL and not self._is_forced:
            self._end_call("".join(self._arguments))
        self._part = _Part.BETWEEN

    def _end_call(self, text: str) -> None:
        arguments = text.strip(_SPACE)
        if not _is_object(arguments):
            self._reject_header()
            self._emit(ContentDelta, text)
        elif self._parallel or not self._num_calls:
            self._begin_call(arguments)

    def _begin_call(self, arguments: str) -> None:
        id_ = self._ids.make(self._num_calls, self._call)
        self._deltas.append(ToolCallDelta(self._num_calls, arguments, id_, self._call))
        self._num_calls += 1


def _read_header(pieces: Sequence[Piece]) -> tuple[str, str, str | None]:
    """Return the role, the channel and the recipient in a header."""
    parts: dict[str, str] = {"": ""}
    part = ""
    for piece in pieces:
        if piece.control:
            part = "" if piece.text == HARMONY.start else piece.text
        else:
            parts[part] = parts.get(part, "") + piece.text
    recipient = _RECIPIENT.search(" ".join(parts.values()))
    role, channel = (parts.get(one, "").split() or [""] for one in ("", HARMONY.channel))
    is_named = role[0].startswith("to=")
    return "" if is_named else role[0], channel[0], recipient and recipient[1]


def _is_object(text: str) -> bool:
    scanner = JsonScanner()
    return text.startswith("{") and scanner.feed(text) == len(text) and scanner.ended
