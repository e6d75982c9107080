"""The response object of /v1/responses, and its output items. First their models, for the OpenAPI
document.

The object repeats the settings of the request. `store` is always false: nothing is stored.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.chat_response import ChatResponse
from holdfast.server.api.content import Block, ReasoningBlock, TextBlock
from holdfast.server.api.response_fields import chat_logprobs, holdfast_object, usage
from holdfast.server.api.responses.requests import ResponsesRequest
from holdfast.server.api.schema.objects import ChatCompletionTokenLogprob, HoldfastDetails, ResponseModel
from holdfast.server.errors import ApiError
from holdfast.server.prompts import PromptReader


class OutputTextPart(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatCompletionTokenLogprob]


class OutputMessage(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputTextPart]


class ReasoningTextPart(ResponseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(ResponseModel):
    """The thinking before an answer."""

    id: str
    type: Literal["reasoning"]
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[Any]
    content: list[ReasoningTextPart]
    encrypted_content: None


class OutputFunctionCall(ResponseModel):
    id: str
    type: Literal["function_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str = Field(description="The id that a function_call_output refers to.")
    name: str
    arguments: str = Field(description="JSON text, truncated if the response was.")


class ResponsesError(ResponseModel):
    code: str
    message: str


class IncompleteDetails(ResponseModel):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(ResponseModel):
    cached_tokens: int = Field(description="Prompt tokens found in the prefix cache.")
    cache_write_tokens: int


class OutputTokensDetails(ResponseModel):
    reasoning_tokens: int


class ResponsesUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponsesReasoning(ResponseModel):
    effort: str | None
    summary: str | None


class ResponsesResponse(ResponseModel):
    """A response. It repeats the settings of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponsesError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputReasoning | OutputMessage | OutputFunctionCall]
    usage: ResponsesUsage | None
    system_fingerprint: str = Field(
        description="A digest of everything that decides bits. Same fingerprint, same bits."
    )
    holdfast: HoldfastDetails | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: ResponsesReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False] = Field(description="Nothing is stored.")
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class InputTokens(ResponseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseObject:
    """Writes the response object of one request."""

    def __init__(self, response: ChatResponse, body: ResponsesRequest) -> None:
        self._response = response
        self._body = body
        self.request_id = response.call.request_id

    @property
    def _prompts(self) -> PromptReader:
        return self._response.frontend.prompts

    def in_progress(self) -> dict[str, Any]:
        """The object at the beginning of a stream."""
        return self._write("in_progress")

    def failed(self, error: ApiError, blocks: Sequence[Block]) -> dict[str, Any]:
        """The object of a stream that ended with an error."""
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        return self._write("failed", blocks, error={"code": code, "message": error.message})

    def finished(self, blocks: Sequence[Block]) -> dict[str, Any]:
        """The whole response."""
        call, (choice,) = self._response.call, self._response.choices
        is_truncated = choice.finish_reason == "length"
        written = self._write(
            "incomplete" if is_truncated else "completed",
            blocks,
            incomplete_details={"reason": "max_output_tokens"} if is_truncated else None,
            completed_at=None if is_truncated else int(time.time()),
            usage=_usage(usage(call), self._response.num_reasoning_tokens or 0),
            holdfast={**holdfast_object(call), **self._response.model_fields.all()},
        )
        if self._body.return_token_ids:
            written |= {"prompt_token_ids": call.prompts[0], "token_ids": choice.token_ids}
        return written

    def item(self, block: Block, status: str | None = None) -> dict[str, Any]:
        """One of the output items. Without a status it is a closed one."""
        status = status or ("completed" if block.is_complete else "incomplete")
        if isinstance(block, TextBlock):
            return {
                "id": self.item_id(block),
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [] if status == "in_progress" else [self.part(block)],
            }
        if isinstance(block, ReasoningBlock):
            return {
                "id": self.item_id(block),
                "type": "reasoning",
                "status": status,
                "summary": [],
                "content": [] if status == "in_progress" else [self.part(block)],
                "encrypted_content": None,
            }
        return {
            "id": self.item_id(block),
            "type": "function_call",
            "status": status,
            "call_id": block.id,
            "name": block.name,
            "arguments": "" if status == "in_progress" else block.arguments,
        }

    def item_id(self, block: Block) -> str:
        prefixes = {TextBlock: "msg", ReasoningBlock: "rs"}
        return f"{prefixes.get(type(block), 'fc')}_{self.request_id}_{block.index}"

    def part(self, block: TextBlock | ReasoningBlock) -> dict[str, Any]:
        """The content part of a message item or a reasoning item."""
        if isinstance(block, ReasoningBlock):
            return {"type": "reasoning_text", "text": block.text}
        logprobs = self.logprobs(block.logprobs)
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}

    def logprobs(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = chat_logprobs(self._prompts, logprobs)["content"]
        return content

    def _write(self, status: str, blocks: Sequence[Block] = (), **fields: Any) -> dict[str, Any]:
        body, response = self._body, self._response
        return {
            "id": f"resp_{self.request_id}",
            "object": "response",
            "created_at": response.created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": response.frontend.model,
            "output": [self.item(block) for block in blocks],
            "usage": None,
            "system_fingerprint": response.fingerprint,
            **_settings(body),
            **fields,
        }


def _settings(body: ResponsesRequest) -> dict[str, Any]:
    """The request's settings, with the defaults of those it omits."""
    text = {} if body.text is None else body.text.model_dump(by_alias=True, exclude_none=True)
    reasoning = body.reasoning
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    choice = body.tool_choice or ("auto" if tools else "none")
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _usage(counts: dict[str, Any], num_reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": counts["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": counts["total_tokens"],
    }
