"""The event stream of /v1/responses. Every event has its type and a sequence number.

response.created, response.in_progress
for each output item:   response.output_item.added
    thinking            response.content_part.added, reasoning_text.delta ..., reasoning_text.done, content_part.done
    text                response.content_part.added, output_text.delta ..., output_text.done, content_part.done
    call                response.function_call_arguments.delta ..., function_call_arguments.done
                        response.output_item.done
response.completed, or response.incomplete at the token limit, or error and response.failed
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from holdfast.core.results import Delta
from holdfast.server.api.chat_response import ChatResponse
from holdfast.server.api.content import (
    Block,
    BlockEvent,
    CallBlock,
    ContentBlocks,
    Grown,
    Opened,
    ReasoningBlock,
    TextBlock,
    whole_blocks,
)
from holdfast.server.api.responses.objects import ResponseObject, ResponsesResponse
from holdfast.server.api.responses.requests import ResponsesRequest
from holdfast.server.errors import ApiError
from holdfast.server.http.sse import KEEP_ALIVE, sse_event


class ResponseWriter:
    """Writes one response: its events, or the whole object."""

    def __init__(self, response: ChatResponse, body: ResponsesRequest) -> None:
        self._response = response
        self._object = ResponseObject(response, body)
        self._blocks = ContentBlocks()
        self._num_events = 0
        self._closed: list[Block] = []

    def whole(self) -> ResponsesResponse:
        (choice,) = self._response.choices
        return self._object.finished(whole_blocks(choice))

    async def stream(self) -> AsyncIterator[bytes]:
        created = self._event("response.created", response=self._object.in_progress())
        yield created + self._event("response.in_progress", response=self._object.in_progress())
        async for batch in self._response.call.batches():
            written = [one for _, delta in batch for one in self._write_events(delta)]
            if written or not batch:
                yield b"".join(written) or KEEP_ALIVE
        self._response.finished()
        finished = self._object.finished(self._closed)
        self._response.model_fields.rest()  # the object has all of them
        yield self._event(f"response.{finished.status}", response=finished)

    def _write_events(self, delta: Delta) -> Iterator[bytes]:
        self._response.model_fields.add(delta)  # before the text that they led to
        for event in self._blocks.add_delta(self._response.choices[0], delta):
            yield from self._write(event)

    def end_stream(self, error: ApiError) -> Sequence[bytes]:
        said = self._event("error", code=error.code, message=error.message, param=error.param)
        failed = self._event("response.failed", response=self._object.failed(error, self._closed))
        return said, failed

    def _event(self, kind: str, **fields: Any) -> bytes:
        """Return an event. Its `holdfast` object has the model's fields that were not sent yet."""
        number, self._num_events = self._num_events, self._num_events + 1
        content = {
            "type": kind,
            "sequence_number": number,
            **fields,
            **self._response.model_fields.of_chunk(),
        }
        return sse_event(content, kind)

    def _write(self, event: BlockEvent) -> Iterator[bytes]:
        block = event.block
        if isinstance(event, Opened):
            item = self._object.item(block, "in_progress")
            yield self._event("response.output_item.added", output_index=block.index, item=item)
            if not isinstance(block, CallBlock):
                part = self._object.part(type(block)(block.index))
                yield self._event("response.content_part.added", **self._place(block), part=part)
        elif isinstance(event, Grown):
            yield self._write_delta(event)
        else:
            yield from self._write_done(block)

    def _write_delta(self, event: Grown) -> bytes:
        place = self._place(event.block)
        if isinstance(event.block, TextBlock):
            logprobs = self._object.logprobs(event.logprobs)
            return self._event("response.output_text.delta", **place, delta=event.text, logprobs=logprobs)
        if isinstance(event.block, ReasoningBlock):
            return self._event("response.reasoning_text.delta", **place, delta=event.text)
        return self._event("response.function_call_arguments.delta", **place, delta=event.text)

    def _write_done(self, block: Block) -> Iterator[bytes]:
        self._closed.append(block)
        place = self._place(block)
        if isinstance(block, TextBlock):
            part = self._object.text_part(block)
            yield self._event("response.output_text.done", **place, text=part.text, logprobs=part.logprobs)
            yield self._event("response.content_part.done", **place, part=part)
        elif isinstance(block, ReasoningBlock):
            yield self._event("response.reasoning_text.done", **place, text=block.text)
            yield self._event("response.content_part.done", **place, part=self._object.part(block))
        else:
            yield self._event(
                "response.function_call_arguments.done", **place, name=block.name, arguments=block.text
            )
        yield self._event(
            "response.output_item.done", output_index=block.index, item=self._object.item(block)
        )

    def _place(self, block: Block) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._object.item_id(block), "output_index": block.index}
        return place if isinstance(block, CallBlock) else {**place, "content_index": 0}
