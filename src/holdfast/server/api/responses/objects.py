"""The response object of /v1/responses, and its output items.

The object repeats the settings of the request. `store` is always false: nothing is stored.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.chat_response import ChatResponse
from holdfast.server.api.content import Block, ReasoningBlock, TextBlock
from holdfast.server.api.response_fields import chat_logprobs, holdfast_object, num_cached_tokens
from holdfast.server.api.responses.requests import Reasoning, ResponsesRequest
from holdfast.server.api.schema.objects import (
    CachedTokens,
    ChatCompletionTokenLogprob,
    Fingerprint,
    HoldfastDetails,
    JsonObject,
)
from holdfast.server.errors import ApiError

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputTextPart(JsonObject, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[ChatCompletionTokenLogprob]


class OutputMessage(JsonObject, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputTextPart]


class ReasoningTextPart(JsonObject, tag_field="type", tag="reasoning_text"):
    text: str


class OutputReasoning(JsonObject, tag_field="type", tag="reasoning"):
    """The thinking before an answer."""

    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningTextPart]
    encrypted_content: None


class OutputFunctionCall(JsonObject, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: Annotated[str, Meta(description="The id that a function_call_output refers to.")]
    name: str
    arguments: Annotated[str, Meta(description="JSON text, truncated if the response was.")]


class ResponsesError(JsonObject):
    code: str
    message: str


class IncompleteDetails(JsonObject):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(JsonObject):
    cached_tokens: CachedTokens
    cache_write_tokens: int


class OutputTokensDetails(JsonObject):
    reasoning_tokens: int


class ResponsesUsage(JsonObject):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponsesReasoning(JsonObject):
    effort: str | None
    summary: str | None


class ResponsesResponse(JsonObject, tag_field="object", tag="response", omit_defaults=False):
    """A response. It repeats the settings of its request. Nothing is stored."""

    id: str
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[OutputReasoning | OutputMessage | OutputFunctionCall]
    system_fingerprint: Fingerprint
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    reasoning: ResponsesReasoning
    safety_identifier: str | None
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    user: str | None
    completed_at: int | None = None
    error: ResponsesError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponsesUsage | None = None
    background: bool = False
    previous_response_id: None = None
    service_tier: Literal["default"] = "default"
    store: bool = False
    truncation: Literal["disabled"] = "disabled"
    holdfast: HoldfastDetails | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class InputTokens(JsonObject, tag_field="object", tag="response.input_tokens"):
    input_tokens: int


class ResponseObject:
    """Writes the response object of one request."""

    def __init__(self, response: ChatResponse, body: ResponsesRequest) -> None:
        self._response = response
        self._body = body
        self._request_id = response.call.request_id

    def in_progress(self) -> ResponsesResponse:
        """Return the object at the beginning of a stream."""
        return self._write("in_progress")

    def failed(self, error: ApiError, blocks: Sequence[Block]) -> ResponsesResponse:
        """Return the object of a stream that ended with an error."""
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        return self._write("failed", blocks, error=ResponsesError(code, error.message))

    def finished(self, blocks: Sequence[Block]) -> ResponsesResponse:
        """Return the whole response."""
        response, (choice,) = self._response, self._response.choices
        written = self._write("completed", blocks, completed_at=int(time.time()))
        if choice.finish_reason == "length":
            written.status, written.completed_at = "incomplete", None
            written.incomplete_details = IncompleteDetails("max_output_tokens")
        written.usage = self._usage()
        written.holdfast = holdfast_object(response.call, **response.model_fields.all())
        if self._body.return_token_ids:
            written.prompt_token_ids, written.token_ids = response.call.prompts[0], choice.token_ids
        return written

    def item(
        self, block: Block, status: ItemStatus | None = None
    ) -> OutputMessage | OutputReasoning | OutputFunctionCall:
        """Return one of the output items. Without a status it is a closed one."""
        id_, begins = self.item_id(block), status == "in_progress"
        status = status or ("completed" if block.is_complete else "incomplete")
        if isinstance(block, TextBlock):
            return OutputMessage(id_, "assistant", status, [] if begins else [self.text_part(block)])
        if isinstance(block, ReasoningBlock):
            return OutputReasoning(id_, status, [], [] if begins else [ReasoningTextPart(block.text)], None)
        return OutputFunctionCall(id_, status, block.id, block.name, "" if begins else block.text)

    def item_id(self, block: Block) -> str:
        prefixes = {TextBlock: "msg", ReasoningBlock: "rs"}
        return f"{prefixes.get(type(block), 'fc')}_{self._request_id}_{block.index}"

    def part(self, block: TextBlock | ReasoningBlock) -> OutputTextPart | ReasoningTextPart:
        """Return the content part of a message item or a reasoning item."""
        return self.text_part(block) if isinstance(block, TextBlock) else ReasoningTextPart(block.text)

    def text_part(self, block: TextBlock) -> OutputTextPart:
        return OutputTextPart(block.text, [], self.logprobs(block.logprobs))

    def logprobs(self, logprobs: Sequence[TokenLogprob]) -> list[ChatCompletionTokenLogprob]:
        return chat_logprobs(self._response.frontend.prompts, logprobs).content

    def _usage(self) -> ResponsesUsage:
        call = self._response.call
        prompt, answer = call.num_prompt_tokens, call.num_completion_tokens
        cached = InputTokensDetails(num_cached_tokens(call), 0)
        reasoning = OutputTokensDetails(self._response.num_reasoning_tokens or 0)
        return ResponsesUsage(prompt, cached, answer, reasoning, prompt + answer)

    def _write(
        self,
        status: Literal["in_progress", "completed", "failed"],
        blocks: Sequence[Block] = (),
        **fields: Any,
    ) -> ResponsesResponse:
        """Return the object with the request's settings, and the defaults of those it omits."""
        body, response, reasoning = (
            self._body,
            self._response,
            self._body.reasoning or Reasoning.model_construct(),
        )
        text = {} if body.text is None else body.text.model_dump(by_alias=True, exclude_none=True)
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        choice = body.tool_choice or ("auto" if tools else "none")
        return ResponsesResponse(
            id=f"resp_{self._request_id}",
            created_at=response.created,
            status=status,
            model=response.frontend.model,
            output=[self.item(block) for block in blocks],
            system_fingerprint=response.fingerprint,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            prompt_cache_key=body.prompt_cache_key,
            reasoning=ResponsesReasoning(reasoning.effort, reasoning.summary),
            safety_identifier=body.safety_identifier,
            temperature=1.0 if body.temperature is None else body.temperature,
            text={"format": {"type": "text"}, **text},
            tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
            tools=tools,
            top_logprobs=body.top_logprobs or 0,
            top_p=1.0 if body.top_p is None else body.top_p,
            user=body.user,
            **fields,
        )
