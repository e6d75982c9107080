"""The message object of /v1/messages, and the events of its stream.

message_start, ping
for each content block:   content_block_start, content_block_delta ..., content_block_stop;
                          the last delta of thinking is its signature
message_delta             stop reason, usage, the `holdfast` object
message_stop, or error
"""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from pydantic_core import from_json

from holdfast.core.results import Delta
from holdfast.server.api.chat_response import ChatChoice, ChatResponse
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
from holdfast.server.api.response_fields import holdfast_object, num_cached_tokens
from holdfast.server.api.schema.objects import CachedTokens, Fingerprint, HoldfastDetails, JsonObject
from holdfast.server.errors import ApiError
from holdfast.server.http.sse import sse_event

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_NO_INPUT = msgspec.Raw(b"{}")
_PING = sse_event({"type": "ping"}, "ping")


class MessageThinkingBlock(JsonObject, tag_field="type", tag="thinking"):
    """signature: a digest of the thinking. Clients expect one and send it back; here it proves nothing."""

    thinking: str
    signature: str


class MessageTextBlock(JsonObject, tag_field="type", tag="text"):
    text: str


class MessageToolUseBlock(JsonObject, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Any


class MessageUsage(JsonObject):
    input_tokens: Annotated[int, Meta(description="Prompt tokens that were not in the prefix cache.")]
    cache_creation_input_tokens: int
    cache_read_input_tokens: CachedTokens
    output_tokens: int


class MessageResponse(JsonObject, tag_field="type", tag="message"):
    """A message. At the beginning of a stream it has no content and no reason to stop."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[MessageThinkingBlock | MessageTextBlock | MessageToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: Annotated[str | None, Meta(description="The stop sequence that ended the message.")]
    usage: MessageUsage
    system_fingerprint: Fingerprint
    holdfast: HoldfastDetails | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class MessageTokensCount(JsonObject):
    input_tokens: int


def message_object(response: ChatResponse, **fields: Any) -> MessageResponse:
    """Return the message, as at the beginning of a stream, with these fields changed."""
    start: dict[str, Any] = {
        "stop_reason": None,
        "stop_sequence": None,
        "content": [],
        "usage": MessageUsage(response.call.num_prompt_tokens, 0, 0, 0),
    }
    return MessageResponse(
        id=f"msg_{response.call.request_id}",
        role="assistant",
        model=response.frontend.model,
        system_fingerprint=response.call.system_fingerprint,
        **(start | fields),
    )


def content_block(block: Block, *, empty: bool = False) -> JsonObject:
    """Return one of the content blocks; empty: as it is at its beginning."""
    if isinstance(block, TextBlock):
        return MessageTextBlock("" if empty else block.text)
    if isinstance(block, ReasoningBlock):
        return MessageThinkingBlock(*("", "") if empty else (block.text, signature(block)))
    input_ = _NO_INPUT if empty else _input(block.text)
    return MessageToolUseBlock(tool_use_id(block.id), block.name, input_)


def signature(block: ReasoningBlock) -> str:
    """Return a digest of the thinking."""
    return hashlib.sha256(block.text.encode()).hexdigest()


def tool_use_id(call_id: str) -> str:
    """Return the id of a call, with the prefix of this API."""
    prefix, found, rest = call_id.partition("call_")
    return f"toolu_{rest}" if found and not prefix else call_id


def stop_fields(choice: ChatChoice) -> dict[str, Any]:
    """Return why the message ended."""
    if isinstance(choice.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
    return {"stop_reason": _STOP_REASONS[choice.finish_reason or "stop"], "stop_sequence": None}


def end_fields(response: ChatResponse, model_fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are known at the end, besides the content and the stop reason.

    As in Anthropic's API, input_tokens are those that were not in the cache.
    """
    call, (choice,) = response.call, response.choices
    cached = num_cached_tokens(call)
    usage = MessageUsage(call.num_prompt_tokens - cached, 0, cached, call.num_completion_tokens)
    fields: dict[str, Any] = {"usage": usage, "holdfast": holdfast_object(call, **model_fields)}
    if response.body.return_token_ids:
        fields |= {"prompt_token_ids": call.prompts[0], "token_ids": choice.token_ids}
    return fields


def _input(arguments: str) -> msgspec.Raw:
    """Return the arguments as the model wrote them. Of truncated ones the part that is complete, as
    Anthropic's clients read it from a stream."""
    try:
        if isinstance(from_json(arguments, allow_inf_nan=False), dict):
            return msgspec.Raw(arguments.encode())
        return _NO_INPUT
    except ValueError:
        pass
    try:
        partial = from_json(arguments, allow_partial=True, allow_inf_nan=False)
        return msgspec.Raw(json.dumps(partial, allow_nan=False).encode())
    except ValueError:
        return _NO_INPUT


class MessageWriter:
    """Writes one message: its events, or the whole object."""

    def __init__(self, response: ChatResponse) -> None:
        self._response = response
        self._blocks = ContentBlocks()

    async def whole(self) -> MessageResponse:
        await self._response.collect()
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
