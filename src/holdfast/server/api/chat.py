"""POST /v1/chat/completions: chat completions with tools and structured output, streamed or not.

`_stream` writes the server-sent chunks, `_collect` the whole response.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Delta, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.errors import HoldfastError
from holdfast.server.api.chat_prompt import ChatPrompt, ChatPrompts
from holdfast.server.api.response_fields import chat_logprobs, holdfast_object, usage
from holdfast.server.api.sampling import sampling_params
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, body_schema, responses
from holdfast.server.api.schema.requests import ChatCompletionRequest
from holdfast.server.api.schema.responses import ChatCompletion
from holdfast.server.api.thinking import ThoughtStream, all_thoughts, require_thinking_model
from holdfast.server.call import Call
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.json_body import read_body
from holdfast.server.http.responses import DONE, KEEP_ALIVE, EventStreamResponse, JSONResponse, sse_event
from holdfast.server.tools.deltas import ChoiceDelta, ToolCallDelta, ToolParser, finish_reason, merge_deltas


def chat_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter(tags=["completions"])
    prompts = ChatPrompts(frontend.prompts)

    @router.post(
        "/v1/chat/completions",
        openapi_extra=body_schema(ChatCompletionRequest),
        responses=responses(ChatCompletion, ENGINE_ERRORS, streams=True),
    )
    async def chat(request: Request) -> Response:
        """Create a chat completion."""
        body = await read_body(request, ChatCompletionRequest)
        frontend.require_model(body.model)
        _refuse_unsupported(body)
        async with AsyncExitStack() as stack:
            call = await stack.enter_async_context(
                frontend.call(
                    request,
                    "chat",
                    deterministic=bool(body.deterministic),
                    num_choices=body.n or 1,
                    stream=bool(body.stream),
                )
            )
            response = await run_until_disconnect(request, _submit(frontend, prompts, call, body))
            if body.stream:
                response.fingerprint = await run_until_disconnect(request, call.fingerprint())
                return EventStreamResponse(_stream(response), stack.pop_all())
            return JSONResponse(await run_until_disconnect(request, _collect(response)))

    return router


async def _submit(
    frontend: Frontend, prompts: ChatPrompts, call: Call, body: ChatCompletionRequest
) -> "ChatResponse":
    """Render the conversation and submit the request to the engine."""
    require_thinking_model(call, body)
    try:
        prompt = await prompts.render(body)
        params = _params(frontend, body, prompt)
        await call.submit(prompt.ids, params, want_receipt=bool(body.return_receipt))
    except HoldfastError as error:
        raise to_api_error(error) from None
    try:
        await call.accepted()
    except ApiError as error:
        raise error.with_message(prompt.plan.explain(error.message)) from None
    return ChatResponse(frontend, call, body, prompt)


class ChatResponse:
    """The state of one response."""

    def __init__(
        self, frontend: Frontend, call: Call, body: ChatCompletionRequest, prompt: ChatPrompt
    ) -> None:
        self.frontend = frontend
        self.call = call
        self.body = body
        self.fingerprint = ""
        self.created = int(time.time())
        seed = call.streams[0].seed
        assert seed is not None
        self.choices = [ChatChoice(prompt.parser(seed, index)) for index in range(body.n or 1)]

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.call.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.frontend.model,
            "system_fingerprint": self.fingerprint,
        }

    def logprobs(self, logprobs: list[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(self.frontend.prompts, logprobs) if self.body.logprobs else None


class ChatChoice:
    """The state of one choice: its text, parsed into content and tool calls."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self.deltas: list[ChoiceDelta] = []
        self.logprobs: list[TokenLogprob] = []
        self.token_ids: list[int] = []
        self.thoughts: list[Thought] = []
        self.finish_reason: str | None = None

    def add(self, delta: Delta) -> list[ChoiceDelta]:
        """Parse a delta's text. Returns the deltas to send."""
        self.logprobs.extend(delta.logprobs or ())
        self.token_ids.extend(delta.token_ids)
        self.thoughts.extend(delta.thoughts)
        new = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            new += self._parser.finish()
        self.deltas += new
        if delta.finish_reason is not None:
            num_calls = sum(isinstance(one, ToolCallDelta) and one.id is not None for one in self.deltas)
            self.finish_reason = finish_reason(delta.finish_reason, num_calls)
        return new


async def _stream(response: ChatResponse) -> AsyncIterator[bytes]:
    """Chunks: the role of each choice, then the deltas; the last chunk has the `holdfast` object."""
    call, body = response.call, response.body
    head = response.head("chat.completion.chunk")
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    null_usage: dict[str, Any] = {"usage": None} if with_usage else {}
    for index in range(len(response.choices)):
        first = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        ids = {"prompt_token_ids": call.prompts[0]} if body.return_token_ids and index == 0 else {}
        yield sse_event({**head, "choices": [first], **null_usage, **ids})
    num_unfinished = len(response.choices)
    thoughts = ThoughtStream()
    last: dict[str, Any] = {}
    async for _, delta in call.deltas():
        if delta is None:
            yield KEEP_ALIVE
            continue
        if delta.finish_reason == "error":
            continue  # sent as an error event when the result arrives
        thoughts.add(delta.index, delta.thoughts)
        for choice in _chunk_choices(response, delta):
            num_unfinished -= choice["finish_reason"] is not None
            if num_unfinished == 0:
                last = choice
                break
            yield sse_event({**head, "choices": [choice], **null_usage, **thoughts.pop_object()})
    call.finished([choice.finish_reason or "stop" for choice in response.choices])
    details = {"holdfast": {**holdfast_object(call), **thoughts.pop()}}
    if with_usage:
        yield sse_event({**head, "choices": [last], "usage": None})
        yield sse_event({**head, "choices": [], "usage": usage(call), **details})
    else:
        yield sse_event({**head, "choices": [last], **details})
    yield DONE


def _chunk_choices(response: ChatResponse, delta: Delta) -> list[dict[str, Any]]:
    """The `choices` entries of the chunks for one delta.

    Logprobs and token ids go with the first of them.
    """
    choice = response.choices[delta.index]
    bodies = [one.body() for one in choice.add(delta)]
    if delta.finish_reason is not None or not bodies:
        bodies.append({})
    chunks: list[dict[str, Any]] = [
        {"index": delta.index, "delta": body, "logprobs": None, "finish_reason": None} for body in bodies
    ]
    chunks[-1]["finish_reason"] = choice.finish_reason
    if delta.logprobs:
        chunks[0]["logprobs"] = response.logprobs(list(delta.logprobs))
    if response.body.return_token_ids:
        chunks[0]["token_ids"] = delta.token_ids
    return [
        one
        for one in chunks
        if one["delta"] or one["finish_reason"] or one["logprobs"] or one.get("token_ids") or delta.thoughts
    ]


async def _collect(response: ChatResponse) -> dict[str, Any]:
    """The whole response, without streaming."""
    call, body = response.call, response.body
    async for _, delta in call.deltas():
        if delta is not None:
            response.choices[delta.index].add(delta)
    call.finished([choice.finish_reason or "stop" for choice in response.choices])
    response.fingerprint = await call.fingerprint()
    choices = []
    for index, choice in enumerate(response.choices):
        entry: dict[str, Any] = {
            "index": index,
            "message": merge_deltas(choice.deltas).body(),
            "logprobs": response.logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }
        choices.append({**entry, "token_ids": choice.token_ids} if body.return_token_ids else entry)
    body_json = {
        **response.head("chat.completion"),
        "choices": choices,
        "usage": usage(call),
        "holdfast": {
            **holdfast_object(call),
            **all_thoughts(call, (one.thoughts for one in response.choices)),
        },
    }
    return {**body_json, "prompt_token_ids": call.prompts[0]} if body.return_token_ids else body_json


def _params(frontend: Frontend, body: ChatCompletionRequest, prompt: ChatPrompt) -> SamplingParams:
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return sampling_params(
        body,
        frontend.config,
        max_tokens=_max_tokens_left(frontend, len(prompt.ids)) if max_tokens is None else max_tokens,
        structured=prompt.plan.structured,
        logprobs=logprobs,
    )


def _max_tokens_left(frontend: Frontend, prompt_len: int) -> int:
    """The default limit: the rest of the context."""
    ready = frontend.supervisor.link.ready
    assert ready is not None
    return max(1, min(ready.max_model_len, ready.num_kv_positions) - prompt_len)


def _refuse_unsupported(body: ChatCompletionRequest) -> None:
    if body.modalities is not None and body.modalities != ["text"]:
        raise ApiError(400, 'modalities may only be ["text"]', param="modalities", code="unsupported_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            400, "top_logprobs requires logprobs to be true", param="top_logprobs", code="invalid_value"
        )
