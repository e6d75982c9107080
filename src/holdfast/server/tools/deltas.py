"""Deltas of a chat choice in OpenAI's shape: thinking, content and tool calls.

A `ToolParser` turns generated text into deltas. A whole message is the merge of its deltas, so a
response and a stream cannot differ. The id of a call is a function of the request and the call's
index: the same request gives the same response, ids included.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol


@dataclass(frozen=True)
class ContentDelta:
    """More content."""

    text: str

    def body(self) -> dict[str, Any]:
        """Return the `delta` of a chunk."""
        return {"content": self.text}


@dataclass(frozen=True)
class ReasoningDelta:
    """More of the thinking before the answer."""

    text: str

    def body(self) -> dict[str, Any]:
        """Return the `delta` of a chunk. Clients of vLLM read either name: the newer one, or the one before."""
        return {"reasoning": self.text, "reasoning_content": self.text}


@dataclass(frozen=True)
class ToolCallDelta:
    """More of a call.

    The first delta has id and name; the arguments concatenate to the JSON the model wrote.
    """

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the `delta` of a chunk."""
        if self.id is None:
            call: dict[str, Any] = {"index": self.index, "function": {"arguments": self.arguments}}
        else:
            function = {"name": self.name, "arguments": self.arguments}
            call = {"index": self.index, "id": self.id, "type": "function", "function": function}
        return {"tool_calls": [call]}


ChoiceDelta = ReasoningDelta | ContentDelta | ToolCallDelta


class ToolParser(Protocol):
    """Parses the text of one choice."""

    def feed(self, text: str) -> list[ChoiceDelta]:
        """Return the deltas that are certain after this text."""
        ...

    def finish(self) -> list[ChoiceDelta]:
        """Return the remaining deltas, at the end of the text."""
        ...


class PlainTextParser:
    """All text is content."""

    def feed(self, text: str) -> list[ChoiceDelta]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[ChoiceDelta]:
        return []


@dataclass(frozen=True)
class ToolCall:
    """A tool call. `arguments` is JSON text, truncated if the choice was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedMessage:
    """A whole message. `content` is None if there are only calls, `reasoning` without thinking."""

    content: str | None
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None


def merge_texts(deltas: Sequence[ChoiceDelta]) -> list[ChoiceDelta]:
    """Merge adjacent deltas of thinking and of content, because each delta is sent as one chunk."""
    joined: list[ChoiceDelta] = []
    for kind, run in groupby(deltas, type):
        if kind is ToolCallDelta:
            joined += run
        else:
            joined.append(kind("".join(delta.text for delta in run if not isinstance(delta, ToolCallDelta))))
    return joined


def merge_deltas(deltas: Iterable[ChoiceDelta]) -> ParsedMessage:
    """Return the message of these deltas."""
    texts: list[str] = []
    reasonings: list[str] = []
    heads: dict[int, tuple[str, str]] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            texts.append(delta.text)
            continue
        if isinstance(delta, ReasoningDelta):
            reasonings.append(delta.text)
            continue
        if delta.id is not None:
            heads[delta.index] = delta.id, delta.name or ""
            arguments[delta.index] = []
        arguments[delta.index].append(delta.arguments)
    calls = tuple(ToolCall(*head, "".join(arguments[index])) for index, head in heads.items())
    content, reasoning = "".join(texts), "".join(reasonings)
    return ParsedMessage(content if content or not calls else None, calls, reasoning or None)


def finish_reason(reason: str, num_calls: int) -> str:
    """Return the choice's finish reason. A truncated choice keeps "length", also if it has calls."""
    return "tool_calls" if reason == "stop" and num_calls else reason


@dataclass(frozen=True)
class ToolCallIds:
    """Makes the ids of one choice's calls.

    `key` identifies the request: a digest of its prompt tokens and its seed.

    Turns of a conversation have different prompts, so an id is not repeated in a later turn.
    """

    key: bytes
    choice: int = 0
    short: bool = False  # nine letters and digits, as Mistral's templates require

    def make(self, index: int, name: str) -> str:
        place = f"{self.choice}:{index}:{name}".encode()
        digest = hashlib.sha256(hashlib.sha256(self.key).digest() + place).hexdigest()
        return digest[:9] if self.short else f"call_{digest[:24]}"
