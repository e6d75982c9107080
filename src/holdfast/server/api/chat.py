"""POST /v1/chat/completions: a conversation through the model's chat template, with tools and forms."""

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
from holdfast.server.api.schema.openapi import ASKED, body_schema, responses
from holdfast.server.api.schema.requests import ChatCompletionRequest
from holdfast.server.api.schema.responses import ChatCompletion
from holdfast.server.api.thinking import ThoughtStream, all_thoughts, require_thinker
from holdfast.server.call import Call
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.json_body import read_body
from holdfast.server.http.responses import DONE, KEEP_ALIVE, EventStreamResponse, JSONResponse, sse_event
from holdfast.server.tools.deltas import ChoiceDelta, ToolCallDelta, ToolParser, finish_reason, merge_deltas


def chat_routes(front: Frontend) -> APIRouter:
    router = APIRouter(tags=["answers"])
    prompts = ChatPrompts(front.prompts)

    @router.post(
        "/v1/chat/completions",
        openapi_extra=body_schema(ChatCompletionRequest),
        responses=responses(ChatCompletion, ASKED, streams=True),
    )
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatCompletionRequest)
        front.require_model(body.model)
        _refuse_unsupported(body)
        async with AsyncExitStack() as stack:
            call = await stack.enter_async_context(
                front.call(
                    request,
                    "chat",
                    deterministic=bool(body.deterministic),
                    num_choices=body.n or 1,
                    stream=bool(body.stream),
                )
            )
            answer = await run_until_disconnect(request, _begin(front, prompts, call, body))
            if body.stream:
                answer.fingerprint = await run_until_disconnect(request, call.fingerprint())
                return EventStreamResponse(_events(answer), stack.pop_all())
            return JSONResponse(await run_until_disconnect(request, _collect(answer)))

    return router


async def _begin(
    front: Frontend, prompts: ChatPrompts, call: Call, body: ChatCompletionRequest
) -> "ChatResponse":
    """Read the conversation and ask the engine."""
    require_thinker(call, body)
    try:
        prompt = await prompts.read(body)
        params = _params(front, body, prompt)
        await call.submit(prompt.ids, params, want_receipt=bool(body.return_receipt))
    except HoldfastError as error:
        raise to_api_error(error) from None
    try:
        await call.accepted()
    except ApiError as error:
        raise error.with_message(prompt.plan.explain(error.message)) from None
    return ChatResponse(front, call, body, prompt)


class ChatResponse:
    """One response in the making."""

    def __init__(self, front: Frontend, call: Call, body: ChatCompletionRequest, prompt: ChatPrompt) -> None:
        self.front = front
        self.call = call
        self.body = body
        self.fingerprint = ""
        self.created = int(time.time())
        seed = call.streams[0].seed
        assert seed is not None
        self.choices = [ChatChoice(prompt.reader(seed, index)) for index in range(body.n or 1)]

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.call.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.front.model,
            "system_fingerprint": self.fingerprint,
        }

    def logprobs(self, logprobs: list[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(self.front.prompts, logprobs) if self.body.logprobs else None


class ChatChoice:
    """One answer so far: text turned into content and calls."""

    def __init__(self, reader: ToolParser) -> None:
        self._reader = reader
        self.deltas: list[ChoiceDelta] = []
        self.logprobs: list[TokenLogprob] = []
        self.token_ids: list[int] = []
        self.thoughts: list[Thought] = []
        self.finish_reason: str | None = None

    def take(self, delta: Delta) -> list[ChoiceDelta]:
        """What a delta says to the client."""
        self.logprobs.extend(delta.logprobs or ())
        self.token_ids.extend(delta.token_ids)
        self.thoughts.extend(delta.thoughts)
        new = self._reader.feed(delta.text)
        if delta.finish_reason is not None:
            new += self._reader.finish()
        self.deltas += new
        if delta.finish_reason is not None:
            num_calls = sum(isinstance(one, ToolCallDelta) and one.id is not None for one in self.deltas)
            self.finish_reason = finish_reason(delta.finish_reason, num_calls)
        return new


async def _events(answer: ChatResponse) -> AsyncIterator[bytes]:
    """The role first, then a chunk a delta; the last one says how the answer was come by."""
    call, body = answer.call, answer.body
    head = answer.head("chat.completion.chunk")
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    open_ended: dict[str, Any] = {"usage": None} if with_usage else {}
    for index in range(len(answer.choices)):
        first = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        ids = {"prompt_token_ids": call.prompts[0]} if body.return_token_ids and index == 0 else {}
        yield sse_event({**head, "choices": [first], **open_ended, **ids})
    num_open = len(answer.choices)
    thoughts = ThoughtStream()
    last: dict[str, Any] = {}
    async for _, delta in call.deltas():
        if delta is None:
            yield KEEP_ALIVE
            continue
        if delta.finish_reason == "error":
            continue  # told as an event of its own, with the outcome
        thoughts.add(delta.index, delta.thoughts)
        for choice in _chunks(answer, delta):
            num_open -= choice["finish_reason"] is not None
            if num_open == 0:
                last = choice
                break
            yield sse_event({**head, "choices": [choice], **open_ended, **thoughts.about()})
    call.finished([choice.finish_reason or "stop" for choice in answer.choices])
    about = {"holdfast": {**holdfast_object(call), **thoughts.take()}}
    if with_usage:
        yield sse_event({**head, "choices": [last], "usage": None})
        yield sse_event({**head, "choices": [], "usage": usage(call), **about})
    else:
        yield sse_event({**head, "choices": [last], **about})
    yield DONE


def _chunks(answer: ChatResponse, delta: Delta) -> list[dict[str, Any]]:
    """The choices of the chunks one delta makes. Logprobs and ids go with the first; text held back comes without them."""
    choice = answer.choices[delta.index]
    bodies = [one.body() for one in choice.take(delta)]
    if delta.finish_reason is not None or not bodies:
        bodies.append({})
    chunks: list[dict[str, Any]] = [
        {"index": delta.index, "delta": body, "logprobs": None, "finish_reason": None} for body in bodies
    ]
    chunks[-1]["finish_reason"] = choice.finish_reason
    if delta.logprobs:
        chunks[0]["logprobs"] = answer.logprobs(list(delta.logprobs))
    if answer.body.return_token_ids:
        chunks[0]["token_ids"] = delta.token_ids
    return [
        one
        for one in chunks
        if one["delta"] or one["finish_reason"] or one["logprobs"] or one.get("token_ids") or delta.thoughts
    ]


async def _collect(answer: ChatResponse) -> dict[str, Any]:
    """The whole response."""
    call, body = answer.call, answer.body
    async for _, delta in call.deltas():
        if delta is not None:
            answer.choices[delta.index].take(delta)
    call.finished([choice.finish_reason or "stop" for choice in answer.choices])
    answer.fingerprint = await call.fingerprint()
    choices = []
    for index, choice in enumerate(answer.choices):
        written: dict[str, Any] = {
            "index": index,
            "message": merge_deltas(choice.deltas).body(),
            "logprobs": answer.logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }
        choices.append({**written, "token_ids": choice.token_ids} if body.return_token_ids else written)
    response = {
        **answer.head("chat.completion"),
        "choices": choices,
        "usage": usage(call),
        "holdfast": {**holdfast_object(call), **all_thoughts(call, (one.thoughts for one in answer.choices))},
    }
    return {**response, "prompt_token_ids": call.prompts[0]} if body.return_token_ids else response


def _params(front: Frontend, body: ChatCompletionRequest, prompt: ChatPrompt) -> SamplingParams:
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return sampling_params(
        body,
        front.config,
        max_tokens=_room(front, len(prompt.ids)) if given is None else given,
        structured=prompt.form,
        logprobs=logprobs,
    )


def _room(front: Frontend, prompt_len: int) -> int:
    """Without a limit an answer may take what is left of the context."""
    ready = front.supervisor.link.ready
    assert ready is not None
    return max(1, min(ready.max_model_len, ready.num_kv_positions) - prompt_len)


def _refuse_unsupported(body: ChatCompletionRequest) -> None:
    if body.modalities is not None and body.modalities != ["text"]:
        raise ApiError(400, 'modalities may only be ["text"]', param="modalities", code="unsupported_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            400, "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value"
        )
