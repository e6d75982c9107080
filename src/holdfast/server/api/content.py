"""The content of the agents' APIs: blocks of an answer, and messages built from items or blocks.

A choice is a list of blocks, thinking, texts and tool calls, in the order the model wrote them.

`/v1/responses` calls them output items, `/v1/messages` content blocks. A `ContentBlocks` turns the
deltas of a choice into events: a block opens, grows, closes. A whole response has the blocks that
its stream would have closed, so the two cannot differ. A choice without any block has one empty
text block.

    ReasoningDelta, ContentDelta, ToolCallDelta ...  ->  Opened, Grown ..., Closed, Opened, ...
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.results import Delta
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.chat_response import ChatChoice
from holdfast.server.api.schema.requests import ChatMessage
from holdfast.server.tools.deltas import ChoiceDelta, ReasoningDelta, ToolCallDelta


@dataclass
class _Block:
    index: int
    parts: list[str] = field(default_factory=list)
    is_complete: bool = True

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class TextBlock(_Block):
    """Text, with the logprobs of its tokens if they were requested."""

    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass
class ReasoningBlock(_Block):
    """Thinking."""


@dataclass
class CallBlock(_Block):
    """A tool call. The text is that of its arguments: JSON, truncated if the choice was."""

    id: str = ""
    name: str = ""


Block = ReasoningBlock | TextBlock | CallBlock


@dataclass(frozen=True)
class Opened:
    block: Block


@dataclass(frozen=True)
class Grown:
    """The block got more text, or more of its arguments."""

    block: Block
    text: str
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True)
class Closed:
    """Nothing more comes for this block."""

    block: Block


BlockEvent = Opened | Grown | Closed


class ContentBlocks:
    """The blocks of one choice."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._is_open = False
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text has not arrived

    def add(
        self, deltas: Iterable[ChoiceDelta], logprobs: Iterable[TokenLogprob], num_hidden: int = 0
    ) -> list[BlockEvent]:
        """Return the events of new deltas. Logprobs go with the text that arrives with them or next, except
        those of the first num_hidden tokens that have none yet, which are in no text."""
        self._logprobs += logprobs
        del self._logprobs[:num_hidden]
        events: list[BlockEvent] = []
        for delta in deltas:
            if not isinstance(delta, ToolCallDelta):
                kind = ReasoningBlock if isinstance(delta, ReasoningDelta) else TextBlock
                if not self._is_open or not isinstance(self.blocks[-1], kind):
                    events += self._open(kind(len(self.blocks)))
                events.append(self._grow(delta.text))
                continue
            if delta.id is not None:
                events += self._open(CallBlock(len(self.blocks), id=delta.id, name=delta.name or ""))
            if delta.arguments:
                events.append(self._grow(delta.arguments))
        return events

    def add_delta(self, choice: ChatChoice, delta: Delta) -> list[BlockEvent]:
        """Return the events of a delta of the engine. One that ends with an error has none: the result raises it."""
        if delta.finish_reason == "error":
            return []
        events = self.add(*choice.add(delta))
        if delta.finish_reason is not None:
            events += self.finish(is_truncated=choice.finish_reason == "length")
        return events

    def finish(self, *, is_truncated: bool) -> list[BlockEvent]:
        """Return the events at the end of the choice."""
        events: list[BlockEvent] = [] if self.blocks else self._open(TextBlock(0))
        last = self.blocks[-1]
        last.is_complete = not is_truncated
        if isinstance(last, TextBlock):
            last.logprobs += self._logprobs
        return [*events, *self._close()]

    def _open(self, block: Block) -> list[BlockEvent]:
        events = self._close()
        self.blocks.append(block)
        self._is_open = True
        return [*events, Opened(block)]

    def _grow(self, text: str) -> BlockEvent:
        block, logprobs = self.blocks[-1], self._logprobs
        block.parts.append(text)
        if isinstance(block, ReasoningBlock):
            return Grown(block, text)
        self._logprobs = []
        if isinstance(block, TextBlock):
            block.logprobs += logprobs
            return Grown(block, text, logprobs)
        return Grown(block, text)

    def _close(self) -> list[BlockEvent]:
        was_open, self._is_open = self._is_open, False
        return [Closed(self.blocks[-1])] if was_open else []


def whole_blocks(choice: ChatChoice) -> list[Block]:
    """Return the blocks of a finished choice."""
    blocks = ContentBlocks()
    for step in choice.steps:
        blocks.add(*step)
    blocks.finish(is_truncated=choice.finish_reason == "length")
    return blocks.blocks


@dataclass
class _Draft:
    """A message that may still grow: copying it for every part would take quadratic time."""

    role: str
    texts: list[str] | None
    calls: list[dict[str, Any]] = field(default_factory=list)
    tool_call_id: str | None = None
    reasoning: list[str] = field(default_factory=list)


class ConversationBuilder:
    """Messages in the order they were added."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._reasoning: list[str] = []  # of the assistant's next message

    @property
    def is_empty(self) -> bool:
        return not self._drafts

    @property
    def ends_with_calls(self) -> bool:
        return not self.is_empty and bool(self._drafts[-1].calls)

    def add(self, role: str, texts: Iterable[str], *, tool_call_id: str | None = None) -> None:
        """Add a message. Texts are joined with a line break, as the parts of a chat message."""
        self._append(_Draft(role, list(texts), tool_call_id=tool_call_id))

    def add_text(self, role: str, texts: Iterable[str]) -> None:
        """Add text to the last message if it has this role and no calls, else a new message."""
        last = self._drafts[-1] if self._drafts else None
        if last is None or last.role != role or last.calls or last.texts is None or self._reasoning:
            self.add(role, texts)
        else:
            last.texts += texts

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a call to the last message if it is the assistant's, else to a new one."""
        if self.is_empty or self._drafts[-1].role != "assistant" or self._reasoning:
            self._append(_Draft("assistant", None))
        function = {"name": name, "arguments": arguments}
        self._drafts[-1].calls.append({"id": call_id, "type": "function", "function": function})

    def add_reasoning(self, text: str) -> None:
        """Add thinking before the assistant's next text or call. Without one it is dropped."""
        self._reasoning.append(text)

    def _append(self, draft: _Draft) -> None:
        if draft.role == "assistant":
            draft.reasoning = self._reasoning
        self._reasoning = []
        self._drafts.append(draft)

    def messages(self) -> list[ChatMessage]:
        """Return the messages, with the fields that clients of chat completions send."""
        return [_message(draft) for draft in self._drafts]


def _message(draft: _Draft) -> ChatMessage:
    fields: dict[str, Any] = {"role": draft.role}
    fields["content"] = None if draft.texts is None else "\n".join(draft.texts)
    if draft.reasoning:
        fields["reasoning_content"] = "\n".join(draft.reasoning)
    if draft.calls:
        fields["tool_calls"] = draft.calls
    if draft.tool_call_id is not None:
        fields["tool_call_id"] = draft.tool_call_id
    return ChatMessage(**fields)
