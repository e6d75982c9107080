"""What an answer turns out to be, piece by piece: content, and calls of tools, in OpenAI's shape.

A reader is fed the answer's text and gives deltas. A whole answer is what its deltas add up to, so a response in one piece
and a stream cannot differ. The id of a call is a function of the request and the call's place: the same request gives the
same response twice, ids included.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol


@dataclass(frozen=True)
class ContentDelta:
    """More text for the client."""

    text: str

    def body(self) -> dict[str, Any]:
        """The `delta` of a chunk."""
        return {"content": self.text}


@dataclass(frozen=True)
class ToolCallDelta:
    """More of a call. Its first piece has the id and the name; arguments add up to the JSON the model wrote."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None

    def body(self) -> dict[str, Any]:
        """The `delta` of a chunk."""
        if self.id is None:
            call: dict[str, Any] = {"index": self.index, "function": {"arguments": self.arguments}}
        else:
            function = {"name": self.name, "arguments": self.arguments}
            call = {"index": self.index, "id": self.id, "type": "function", "function": function}
        return {"tool_calls": [call]}


ChoiceDelta = ContentDelta | ToolCallDelta


class ToolParser(Protocol):
    """Reads one answer."""

    def feed(self, text: str) -> list[ChoiceDelta]:
        """What is certain now that so much more of the text is known."""
        ...

    def finish(self) -> list[ChoiceDelta]:
        """The rest, when no more text comes."""
        ...


class PlainTextParser:
    """An answer that is content and nothing else."""

    def feed(self, text: str) -> list[ChoiceDelta]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[ChoiceDelta]:
        return []


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. `arguments` is JSON text, and cut off where the answer was."""

    id: str
    name: str
    arguments: str

    def body(self) -> dict[str, Any]:
        """One of a message's `tool_calls`."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True)
class ParsedMessage:
    """A whole answer. `content` is None where there is nothing but calls."""

    content: str | None
    calls: tuple[ToolCall, ...] = ()

    def body(self) -> dict[str, Any]:
        """The `message` of a choice."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if self.calls:
            message["tool_calls"] = [call.body() for call in self.calls]
        return message


def merge_content(deltas: Sequence[ChoiceDelta]) -> list[ChoiceDelta]:
    """The same, with contents that follow each other in one: each delta is a chunk on the wire."""
    joined: list[ChoiceDelta] = []
    for is_content, run in groupby(deltas, lambda delta: isinstance(delta, ContentDelta)):
        if is_content:
            joined.append(
                ContentDelta("".join(delta.text for delta in run if isinstance(delta, ContentDelta)))
            )
        else:
            joined += run
    return joined


def merge_deltas(deltas: Iterable[ChoiceDelta]) -> ParsedMessage:
    """The answer its deltas make."""
    texts: list[str] = []
    heads: list[tuple[str, str]] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            texts.append(delta.text)
            continue
        if delta.id is not None:
            heads.append((delta.id, delta.name or ""))
            arguments.append([])
        arguments[delta.index].append(delta.arguments)
    calls = tuple(
        ToolCall(id_, name, "".join(pieces)) for (id_, name), pieces in zip(heads, arguments, strict=True)
    )
    content = "".join(texts)
    return ParsedMessage(content if content or not calls else None, calls)


def parse_text(reader: ToolParser, text: str) -> ParsedMessage:
    """An answer that is there in one piece."""
    return merge_deltas([*reader.feed(text), *reader.finish()])


def finish_reason(reason: str, num_calls: int) -> str:
    """What a client is told. An answer that was cut off says so, whatever it called before."""
    return "tool_calls" if reason == "stop" and num_calls else reason


@dataclass(frozen=True)
class ToolCallIds:
    """Makes the ids of one choice's calls. `key` is the request: its prompt's tokens and its seed, say.

    Calls of one conversation differ in their prompts, so ids do not come back in a later turn.
    """

    key: bytes
    choice: int = 0
    short: bool = False  # nine letters and digits, as Mistral's templates ask

    def make(self, index: int, name: str) -> str:
        place = f"{self.choice}:{index}:{name}".encode()
        digest = hashlib.sha256(hashlib.sha256(self.key).digest() + place).hexdigest()
        return digest[:9] if self.short else f"call_{digest[:24]}"
