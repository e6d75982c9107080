"""POST /v1/chat/completions: chat completions with tools and structured output, streamed or not."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Delta
from holdfast.server.api.chat_response import ChatChoice, ChatResponse, serve_chat
from holdfast.server.api.response_fields import ChunkWriter, holdfast_object, prompt_logprobs, usage
from holdfast.server.api.sampling import refuse_contradictions
from holdfast.server.api.schema.objects import (
    ChatCompletion,
    ChatCompletionChoice,
    ChatCompletionMessage,
    FunctionCall,
    MessageToolCall,
)
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, documented
from holdfast.server.api.schema.requests import ChatCompletionRequest
from holdfast.server.errors import ApiError, invalid_value
from holdfast.server.frontend import Frontend
from holdfast.server.http.sse import KEEP_ALIVE, end_with_error
from holdfast.server.served_models import ServedModels
from holdfast.server.tools.deltas import merge_deltas


def chat_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["completions"])

    @router.post(
        "/v1/chat/completions",
        **documented(ChatCompletion, ENGINE_ERRORS, body=ChatCompletionRequest, streams=True),
    )
    async def chat(request: Request) -> Response:
        """Create a chat completion."""
        body = await models.bodies.read(request, ChatCompletionRequest)
        frontend = models.choose(body.model)
        return await chat_completion(request, frontend, body)

    return router


async def chat_completion(
    request: Request, frontend: Frontend, body: ChatCompletionRequest, token_ids: Sequence[int] | None = None
) -> Response:
    """Run a chat completion, streamed or not. token_ids: what the client has of the answer."""
    _refuse_unsupported(body)
    return await serve_chat(request, frontend, body, ChatCompletionWriter, token_ids)


class ChatCompletionWriter:
    """Writes a response as a chat completion, or as its chunks."""

    def __init__(self, response: ChatResponse) -> None:
        self._response = response

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the role of each choice, then the deltas; the last chunk has the `holdfast` object."""
        response, call, body = self._response, self._response.call, self._response.body
        head = {"object": "chat.completion.chunk", **_head(response)}
        chunks = ChunkWriter(call, head, body.stream_options, response.model_fields)
        yield b"".join(_first_chunk(response, index, chunks) for index in range(len(response.choices)))
        num_unfinished = len(response.choices)
        last: dict[str, Any] = {}
        async for batch in call.batches():
            events = [] if batch else [KEEP_ALIVE]
            for _, delta in batch:
                if delta.finish_reason == "error":
                    continue  # sent as an error event when the result arrives
                response.model_fields.add(delta)
                for choice in _chunk_choices(response, delta):
                    num_unfinished -= choice["finish_reason"] is not None
                    if num_unfinished == 0:
                        last = choice
                        break
                    events.append(chunks.chunk(choice))
            if events:
                yield b"".join(events)
        response.finished()
        yield chunks.end(last, response.num_reasoning_tokens)

    def end_stream(self, error: ApiError) -> Sequence[bytes]:
        return end_with_error(error)

    async def whole(self) -> ChatCompletion:
        await self._response.collect()
        response, call, body = self._response, self._response.call, self._response.body
        choices = [
            ChatCompletionChoice(
                index=index,
                message=_message(choice),
                logprobs=response.logprobs(choice.logprobs),
                token_ids=choice.token_ids if body.return_token_ids else None,
                **_end_fields(choice),
            )
            for index, choice in enumerate(response.choices)
        ]
        whole = ChatCompletion(
            **_head(response),
            choices=choices,
            usage=usage(call, response.num_reasoning_tokens),
            holdfast=holdfast_object(call, **response.model_fields.all()),
            prompt_token_ids=call.prompts[0] if body.return_token_ids else None,
        )
        if body.prompt_logprobs is not None:
            num_top = body.prompt_logprobs
            whole.prompt_logprobs = prompt_logprobs(response.frontend.prompts, call.results[0], num_top)
        return whole


def _head(response: ChatResponse) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{response.call.request_id}",
        "created": response.created,
        "model": response.frontend.model,
        "system_fingerprint": response.call.system_fingerprint,
    }


def _first_chunk(response: ChatResponse, index: int, chunks: ChunkWriter) -> bytes:
    """Return the chunk with the role of a choice."""
    first = {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    wants_ids = response.body.return_token_ids and index == 0
    ids = {"prompt_token_ids": response.call.prompts[0]} if wants_ids else {}
    return chunks.chunk(first, **ids)


def _chunk_choices(response: ChatResponse, delta: Delta) -> list[dict[str, Any]]:
    """Return the `choices` entries of the chunks for one delta.

    Logprobs and token ids go with the first of them, the finish reason with the last.
    """
    choice = response.choices[delta.index]
    bodies = [one.body() for one in choice.add(delta).deltas]
    chunks: list[dict[str, Any]] = [
        {"index": delta.index, "delta": body, "logprobs": None, "finish_reason": None}
        for body in bodies or [{}]
    ]
    if delta.finish_reason is not None:
        chunks[-1] |= _end_fields(choice)
    if delta.logprobs:
        chunks[0]["logprobs"] = response.logprobs(list(delta.logprobs))
    if response.body.return_token_ids:
        chunks[0]["token_ids"] = delta.token_ids
    return [
        one
        for one in chunks
        if one["delta"]
        or one["finish_reason"]
        or one["logprobs"]
        or one.get("token_ids")
        or response.model_fields.has_unsent
    ]


def _message(choice: ChatChoice) -> ChatCompletionMessage:
    parsed = merge_deltas(choice.deltas)
    calls = [MessageToolCall(one.id, FunctionCall(one.name, one.arguments)) for one in parsed.calls]
    return ChatCompletionMessage(parsed.content, None, parsed.reasoning, parsed.reasoning, calls or None)


def _end_fields(choice: ChatChoice) -> dict[str, Any]:
    return {
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "matched_stop": choice.matched_stop,
    }


def _refuse_unsupported(body: ChatCompletionRequest) -> None:
    refuse_contradictions(body)
    if body.max_tokens == 0 and body.max_completion_tokens is None and body.prompt_logprobs is None:
        raise invalid_value(
            "max_tokens",
            "it is 0, so there is nothing to answer; ask for at least 1 token. To get the logprobs of the "
            "conversation itself, set prompt_logprobs; to count its tokens, use POST /tokenize",
        )
    if body.modalities is not None and body.modalities != ["text"]:
        raise ApiError(400, 'modalities may only be ["text"]', param="modalities", code="unsupported_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid_value("top_logprobs", "it requires logprobs to be true")
