"""The response object of /v1/responses, its output items, and the events of its stream.

The object repeats the settings of the request. `store` is always false: nothing is stored. Every event
has its type and a sequence number.

response.created, response.in_progress
for each output item:   response.output_item.added
    thinking            response.content_part.added, reasoning_text.delta ..., reasoning_text.done, content_part.done
    text                response.content_part.added, output_text.delta ..., output_text.done, content_part.done
    call                response.function_call_arguments.delta ..., function_call_arguments.done
                        response.output_item.done
response.completed, or response.incomplete at the token limit, or error and response.failed
"""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from holdfast.core.results import Delta
from holdfast.core.step_plan import TokenLogprob
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
from holdfast.server.http.sse import KEEP_ALIVE, sse_event

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


class ResponseWriter:
    """Writes one response: its events, or the whole object."""

    def __init__(self, response: ChatResponse, body: ResponsesRequest) -> None:
        self._response = response
        self._body = body
        self._request_id = response.call.request_id
        self._blocks = ContentBlocks()
        self._num_events = 0
        self._closed: list[Block] = []

    async def whole(self) -> ResponsesResponse:
        await self._response.collect()
        (choice,) = self._response.choices
        return self._finished(whole_blocks(choice))

    async def stream(self) -> AsyncIterator[bytes]:
        begun = self._object("in_progress")
        created = self._event("response.created", response=begun)
        yield created + self._event("response.in_progress", response=begun)
        async for batch in self._response.call.batches():
            written = [one for _, delta in batch for one in self._write_events(delta)]
            if written or not batch:
                yield b"".join(written) or KEEP_ALIVE
        self._response.finished()
        finished = self._finished(self._closed)
        self._response.model_fields.rest()  # the object has all of them
        yield self._event(f"response.{finished.status}", response=finished)

    def end_stream(self, error: ApiError) -> Sequence[bytes]:
        said = self._event("error", code=error.code, message=error.message, param=error.param)
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        failed = self._object("failed", self._closed, error=ResponsesError(code, error.message))
        return said, self._event("response.failed", response=failed)

    def _finished(self, blocks: Sequence[Block]) -> ResponsesResponse:
        """Return the whole response."""
        response, (choice,) = self._response, self._response.choices
        written = self._object("completed", blocks, completed_at=int(time.time()))
        if choice.finish_reason == "length":
            written.status, written.completed_at = "incomplete", None
            written.incomplete_details = IncompleteDetails("max_output_tokens")
        written.usage = self._usage()
        written.holdfast = holdfast_object(response.call, **response.model_fields.all())
        if self._body.return_token_ids:
            written.prompt_token_ids, written.token_ids = response.call.prompts[0], choice.token_ids
        return written

    def _item(
        self, block: Block, status: ItemStatus | None = None
    ) -> OutputMessage | OutputReasoning | OutputFunctionCall:
        """Return one of the output items. Without a status it is a closed one."""
        id_, begins = self._item_id(block), status == "in_progress"
        status = status or ("completed" if block.is_complete else "incomplete")
        if isinstance(block, TextBlock):
            return OutputMessage(id_, "assistant", status, [] if begins else [self._text_part(block)])
        if isinstance(block, ReasoningBlock):
            return OutputReasoning(id_, status, [], [] if begins else [ReasoningTextPart(block.text)], None)
        return OutputFunctionCall(id_, status, block.id, block.name, "" if begins else block.text)

    def _item_id(self, block: Block) -> str:
        prefixes = {TextBlock: "msg", ReasoningBlock: "rs"}
        return f"{prefixes.get(type(block), 'fc')}_{self._request_id}_{block.index}"

    def _part(self, block: TextBlock | ReasoningBlock) -> OutputTextPart | ReasoningTextPart:
        """Return the content part of a message item or a reasoning item."""
        return self._text_part(block) if isinstance(block, TextBlock) else ReasoningTextPart(block.text)

    def _text_part(self, block: TextBlock) -> OutputTextPart:
        return OutputTextPart(block.text, [], self._logprobs(block.logprobs))

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> list[ChatCompletionTokenLogprob]:
        return chat_logprobs(self._response.frontend.prompts, logprobs).content

    def _usage(self) -> ResponsesUsage:
        call = self._response.call
        prompt, answer = call.num_prompt_tokens, call.num_completion_tokens
        cached = InputTokensDetails(num_cached_tokens(call), 0)
        reasoning = OutputTokensDetails(self._response.num_reasoning_tokens or 0)
        return ResponsesUsage(prompt, cached, answer, reasoning, prompt + answer)

    def _object(
        self,
        status: Literal["in_progress", "completed", "failed"],
        blocks: Sequence[Block] = (),
        **fields: Any,
    ) -> ResponsesResponse:
        """Return the object with the request's settings, and the defaults of those it omits."""
        body, response = self._body, self._response
        reasoning = body.reasoning or Reasoning.model_construct()
        text = {} if body.text is None else body.text.model_dump(by_alias=True, exclude_none=True)
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        choice = body.tool_choice or ("auto" if tools else "none")
        return ResponsesResponse(
            id=f"resp_{self._request_id}",
            created_at=response.created,
            status=status,
            model=response.frontend.model,
            output=[self._item(block) for block in blocks],
            system_fingerprint=response.call.system_fingerprint,
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

    def _write_events(self, delta: Delta) -> Iterator[bytes]:
        self._response.model_fields.add(delta)  # before the text that they led to
        for event in self._blocks.add_delta(self._response.choices[0], delta):
            yield from self._write(event)

    def _event(self, kind: str, **fields: Any) -> bytes:
        """Return an event. Its `holdfast` object has the model's fields that were not sent yet."""
        number, self._num_events = self._num_events, self._num_events + 1
        head = {"type": kind, "sequence_number": number}
        return sse_event({**head, **fields, **self._response.model_fields.of_chunk()}, kind)

    def _write(self, event: BlockEvent) -> Iterator[bytes]:
        block = event.block
        if isinstance(event, Opened):
            item = self._item(block, "in_progress")
            yield self._event("response.output_item.added", output_index=block.index, item=item)
            if not isinstance(block, CallBlock):
                part = self._part(type(block)(block.index))
                yield self._event("response.content_part.added", **self._place(block), part=part)
        elif isinstance(event, Grown):
            yield self._write_delta(event)
        else:
            yield from self._write_done(block)

    def _write_delta(self, event: Grown) -> bytes:
        place = self._place(event.block)
        if isinstance(event.block, TextBlock):
            logprobs = self._logprobs(event.logprobs)
            return self._event("response.output_text.delta", **place, delta=event.text, logprobs=logprobs)
        if isinstance(event.block, ReasoningBlock):
            return self._event("response.reasoning_text.delta", **place, delta=event.text)
        return self._event("response.function_call_arguments.delta", **place, delta=event.text)

    def _write_done(self, block: Block) -> Iterator[bytes]:
        self._closed.append(block)
        place = self._place(block)
        if isinstance(block, TextBlock):
            part = self._text_part(block)
            yield self._event("response.output_text.done", **place, text=part.text, logprobs=part.logprobs)
            yield self._event("response.content_part.done", **place, part=part)
        elif isinstance(block, ReasoningBlock):
            yield self._event("response.reasoning_text.done", **place, text=block.text)
            yield self._event("response.content_part.done", **place, part=self._part(block))
        else:
            yield self._event(
                "response.function_call_arguments.done", **place, name=block.name, arguments=block.text
            )
        yield self._event("response.output_item.done", output_index=block.index, item=self._item(block))

    def _place(self, block: Block) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._item_id(block), "output_index": block.index}
        return place if isinstance(block, CallBlock) else {**place, "content_index": 0}
