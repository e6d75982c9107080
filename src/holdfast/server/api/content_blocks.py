"""A choice as a list of blocks, thinking, texts and tool calls, in the order the model wrote them.

`/v1/responses` calls them output items, `/v1/messages` content blocks. A `ContentBlocks` turns the
deltas of a choice into events: a block opens, grows, closes. A whole response has the blocks that
its stream would have closed, so the two cannot differ. A choice without any block has one empty
text block.

    ReasoningDelta, ContentDelta, ToolCallDelta ...  ->  Opened, Grown ..., Closed, Opened, ...
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.chat_response import ChatChoice, ChatResponse
from holdfast.server.api.thoughts import ThoughtStream
from holdfast.server.tools.deltas import ChoiceDelta, ReasoningDelta, ToolCallDelta


@dataclass
class TextBlock:
    """Text, with the logprobs of its tokens if they were requested."""

    index: int
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_complete: bool = True

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class ReasoningBlock:
    """Thinking."""

    index: int
    parts: list[str] = field(default_factory=list)
    is_complete: bool = True

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class CallBlock:
    """A tool call. The arguments are JSON text, truncated if the choice was."""

    index: int
    id: str
    name: str
    parts: list[str] = field(default_factory=list)
    is_complete: bool = True

    @property
    def arguments(self) -> str:
        return "".join(self.parts)


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
        """The events of new deltas. Logprobs go with the text that arrives with them or next, except
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
                events += self._open(CallBlock(len(self.blocks), delta.id, delta.name or ""))
            if delta.arguments:
                events.append(self._grow(delta.arguments))
        return events

    def finish(self, *, is_truncated: bool) -> list[BlockEvent]:
        """The events at the end of the choice."""
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
    """The blocks of a finished choice."""
    blocks = ContentBlocks()
    for step in choice.steps:
        blocks.add(*step)
    blocks.finish(is_truncated=choice.finish_reason == "length")
    return blocks.blocks


async def stream_blocks(response: ChatResponse, thoughts: ThoughtStream) -> AsyncIterator[BlockEvent | None]:
    """The events of a response with one choice; None after 15 seconds without one.

    Thoughts are added to `thoughts` before the events of the text they led to.
    """
    (choice,) = response.choices
    blocks = ContentBlocks()
    async for _, delta in response.call.deltas():
        if delta is None:
            yield None
            continue
        if delta.finish_reason == "error":
            continue  # raised when the result arrives
        thoughts.add(0, delta.thoughts)
        step = choice.add(delta)
        for event in blocks.add(*step):
            yield event
        if delta.finish_reason is not None:
            for event in blocks.finish(is_truncated=choice.finish_reason == "length"):
                yield event
    response.finished()
