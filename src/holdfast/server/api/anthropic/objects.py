"""The message object of /v1/messages: content blocks, stop reason, usage. First its models, for the
OpenAPI document."""

import hashlib
import json
from typing import Any, Literal

import msgspec
from pydantic import Field
from pydantic_core import from_json

from holdfast.server.api.chat_response import ChatChoice, ChatResponse
from holdfast.server.api.content import Block, CallBlock, ReasoningBlock, TextBlock
from holdfast.server.api.response_fields import holdfast_object, usage
from holdfast.server.api.schema.objects import HoldfastDetails, ResponseModel
from holdfast.server.call import Call

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_NO_INPUT = msgspec.Raw(b"{}")


class MessageThinkingBlock(ResponseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="A digest of the thinking.")


class MessageTextBlock(ResponseModel):
    type: Literal["text"]
    text: str


class MessageToolUseBlock(ResponseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(ResponseModel):
    input_tokens: int = Field(description="Prompt tokens that were not in the prefix cache.")
    cache_read_input_tokens: int = Field(description="Prompt tokens found in the prefix cache.")
    cache_creation_input_tokens: int
    output_tokens: int


class MessageResponse(ResponseModel):
    """A message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageThinkingBlock | MessageTextBlock | MessageToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None = Field(description="The stop sequence that ended the message.")
    usage: MessageUsage
    system_fingerprint: str = Field(
        description="A digest of everything that decides bits. Same fingerprint, same bits."
    )
    holdfast: HoldfastDetails
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class MessageTokensCount(ResponseModel):
    input_tokens: int


def message_object(response: ChatResponse, **fields: Any) -> dict[str, Any]:
    """The message, as at the beginning of a stream, with these fields changed."""
    prompt_tokens = response.call.num_prompt_tokens
    return {
        "id": f"msg_{response.call.request_id}",
        "type": "message",
        "role": "assistant",
        "model": response.frontend.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(prompt_tokens, 0, 0),
        "system_fingerprint": response.fingerprint,
        **fields,
    }


def content_block(block: Block) -> dict[str, Any]:
    """One of the content blocks."""
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, ReasoningBlock):
        return {"type": "thinking", "thinking": block.text, "signature": signature(block)}
    return {**call_head(block), "input": _input(block.arguments)}


def empty_block(block: Block) -> dict[str, Any]:
    """The block at its beginning."""
    if isinstance(block, TextBlock):
        return {"type": "text", "text": ""}
    if isinstance(block, ReasoningBlock):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return call_head(block)


def signature(block: ReasoningBlock) -> str:
    """A digest of the thinking. Clients expect one and send it back; here it proves nothing."""
    return hashlib.sha256(block.text.encode()).hexdigest()


def call_head(block: CallBlock) -> dict[str, Any]:
    """The block of a tool call without its input."""
    return {"type": "tool_use", "id": tool_use_id(block.id), "name": block.name, "input": {}}


def tool_use_id(call_id: str) -> str:
    """The id of a call, with the prefix of this API."""
    prefix, found, rest = call_id.partition("call_")
    return f"toolu_{rest}" if found and not prefix else call_id


def stop_fields(choice: ChatChoice) -> dict[str, Any]:
    """Why the message ended."""
    if isinstance(choice.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
    return {"stop_reason": _STOP_REASONS[choice.finish_reason or "stop"], "stop_sequence": None}


def end_fields(response: ChatResponse) -> dict[str, Any]:
    """The fields that are known at the end, besides the content and the stop reason."""
    call, (choice,) = response.call, response.choices
    fields: dict[str, Any] = {"usage": final_usage(call), "holdfast": holdfast_object(call)}
    if response.body.return_token_ids:
        fields |= {"prompt_token_ids": call.prompts[0], "token_ids": choice.token_ids}
    return fields


def final_usage(call: Call) -> dict[str, Any]:
    """As in Anthropic's API, input_tokens are those that were not in the cache."""
    counts = usage(call)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return _usage(counts["prompt_tokens"] - cached, cached, counts["completion_tokens"])


def _usage(uncached: int, cached: int, output: int) -> dict[str, Any]:
    return {
        "input_tokens": uncached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _input(arguments: str) -> msgspec.Raw:
    """The arguments as the model wrote them. Of truncated ones the part that is complete, as
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
