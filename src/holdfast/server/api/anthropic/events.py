"""The event stream of /v1/messages.

message_start, ping
for each content block:   content_block_start, content_block_delta ..., content_block_stop;
                          the last delta of thinking is its signature
message_delta             stop reason, usage, the `holdfast` object
message_stop, or error
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from holdfast.core.results import Delta
from holdfast.server.api.anthropic.objects import (
    MessageResponse,
    content_block,
    end_fields,
    message_object,
    signature,
    stop_fields,
)
from holdfast.server.api.chat_response import ChatResponse
from holdfast.server.api.content import (
    Block,
    BlockEvent,
    ContentBlocks,
    Grown,
    Opened,
    ReasoningBlock,
    TextBlock,
    whole_blocks,
)
from holdfast.server.errors import ApiError
from holdfast.server.http.sse import sse_event

_PING = sse_event({"type": "ping"}, "ping")


class MessageWriter:
    """Writes one message: its events, or the whole object."""

    def __init__(self, response: ChatResponse) -> None:
        self._response = response
        self._blocks = ContentBlocks()

    def whole(self) -> MessageResponse:
        response, (choice,) = self._response, self._response.choices
        content = [content_block(block) for block in whole_blocks(choice)]
        end = end_fields(response, response.model_fields.all())
        return message_object(response, content=content, **stop_fields(choice), **end)

    async def stream(self) -> AsyncIterator[bytes]:
        response = self._response
        yield self._event("message_start", message=message_object(response)) + _PING
        async for batch in response.call.batches():
            written = [one for _, delta in batch for one in self._write_events(delta)]
            if written or not batch:
                yield b"".join(written) or _PING
        response.finished()
        (choice,) = response.choices
        fields = end_fields(response, response.model_fields.rest())
        delta = self._event("message_delta", delta=stop_fields(choice), **fields)
        yield delta + self._event("message_stop")

    def _write_events(self, delta: Delta) -> Iterator[bytes]:
        self._response.model_fields.add(delta)  # before the text that they led to
        for event in self._blocks.add_delta(self._response.choices[0], delta):
            yield from self._write(event)

    def end_stream(self, error: ApiError) -> Sequence[bytes]:
        return (sse_event(error.anthropic_body(self._response.call.request_id), "error"),)

    def _event(self, kind: str, **fields: Any) -> bytes:
        """Return an event. Its `holdfast` object has the model's fields that were not sent yet."""
        return sse_event({"type": kind, **fields, **self._response.model_fields.of_chunk()}, kind)

    def _write(self, event: BlockEvent) -> Iterator[bytes]:
        block = event.block
        if isinstance(event, Opened):
            yield self._event(
                "content_block_start", index=block.index, content_block=content_block(block, empty=True)
            )
        elif isinstance(event, Grown):
            kind, name = _delta_names(block)
            delta = {"type": kind, name: event.text}
            yield self._event("content_block_delta", index=block.index, delta=delta)
        else:
            if isinstance(block, ReasoningBlock):
                delta = {"type": "signature_delta", "signature": signature(block)}
                yield self._event("content_block_delta", index=block.index, delta=delta)
            yield self._event("content_block_stop", index=block.index)


def _delta_names(block: Block) -> tuple[str, str]:
    """Return the type of a block's deltas, and the field with their text."""
    if isinstance(block, TextBlock):
        return "text_delta", "text"
    if isinstance(block, ReasoningBlock):
        return "thinking_delta", "thinking"
    return "input_json_delta", "partial_json"
