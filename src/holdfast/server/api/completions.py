"""POST /v1/completions: raw prompts, text or token ids, one or a batch of them."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Delta, Result, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import HoldfastError
from holdfast.server.api.response_fields import TextLogprobs, holdfast_object, usage
from holdfast.server.api.response_format import form_of
from holdfast.server.api.sampling import sampling_params
from holdfast.server.api.schema.openapi import ASKED, body_schema, responses
from holdfast.server.api.schema.requests import CompletionRequest
from holdfast.server.api.schema.responses import Completion
from holdfast.server.api.thinking import ThoughtStream, all_thoughts, require_thinker
from holdfast.server.call import Call
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.json_body import read_body
from holdfast.server.http.responses import DONE, KEEP_ALIVE, EventStreamResponse, JSONResponse, sse_event

_DEFAULT_MAX_TOKENS = 16


def completion_routes(front: Frontend) -> APIRouter:
    router = APIRouter(tags=["answers"])

    @router.post(
        "/v1/completions",
        openapi_extra=body_schema(CompletionRequest),
        responses=responses(Completion, ASKED, streams=True),
    )
    async def completions(request: Request) -> Response:
        """Complete prompts."""
        body = await read_body(request, CompletionRequest)
        front.require_model(body.model)
        _refuse_unsupported(body)
        prompts = _prompts(body, front.config.max_prompts)
        try:
            params = await front.prompts.run_in_thread(lambda: _params(body, front))
        except HoldfastError as error:
            raise to_api_error(error) from None
        async with AsyncExitStack() as stack:
            call = await stack.enter_async_context(
                front.call(
                    request,
                    "text_completion",
                    deterministic=params.deterministic,
                    num_choices=len(prompts) * params.n,
                    stream=bool(body.stream),
                )
            )
            answer = CompletionResponse(front, call, body, params)
            await run_until_disconnect(request, _submit(front, call, prompts, body, params))
            if body.stream:
                answer.fingerprint = await run_until_disconnect(request, call.fingerprint())
                return EventStreamResponse(_events(answer), stack.pop_all())
            return JSONResponse(await run_until_disconnect(request, _collect(answer)))

    return router


async def _submit(
    front: Frontend,
    call: Call,
    prompts: list[str | list[int]],
    body: CompletionRequest,
    params: SamplingParams,
) -> None:
    require_thinker(call, body)
    frame = body.add_special_tokens is not False
    try:
        for prompt in prompts:
            if isinstance(prompt, list):
                front.prompts.require_room(len(prompt))
            text = prompt if isinstance(prompt, str) else None
            ids = (
                prompt
                if isinstance(prompt, list)
                else await front.prompts.encode(prompt, add_special_tokens=frame)
            )
            await call.submit(ids, params, echo_text=text, want_receipt=bool(body.return_receipt))
    except HoldfastError as error:
        raise to_api_error(error) from None
    await call.accepted()


@dataclass
class _Choice:
    """One answer so far."""

    offsets: TextLogprobs
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    thoughts: list[Thought] = field(default_factory=list)
    finish_reason: str | None = None


class CompletionResponse:
    """One response in the making."""

    def __init__(self, front: Frontend, call: Call, body: CompletionRequest, params: SamplingParams) -> None:
        self.front = front
        self.call = call
        self.body = body
        self.params = params
        self.fingerprint = ""
        self.id = f"cmpl-{call.request_id}"
        self.created = int(time.time())

    def head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.front.model,
            "system_fingerprint": self.fingerprint,
        }

    def index(self, at: int, delta: Delta) -> int:
        """Choices of the first prompt first."""
        return at * self.params.n + delta.index


async def _events(answer: CompletionResponse) -> AsyncIterator[bytes]:
    """A chunk a delta; the last one says how the answer was come by."""
    call, body = answer.call, answer.body
    head = answer.head()
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    offsets: dict[int, TextLogprobs] = {}
    begun: set[int] = set()
    reasons: dict[int, str] = {}
    last: dict[str, Any] = {}
    thoughts = ThoughtStream()
    async for at, delta in call.deltas():
        if delta is None:
            yield KEEP_ALIVE
            continue
        if delta.finish_reason == "error":
            continue  # told as an event of its own, with the outcome
        index = answer.index(at, delta)
        thoughts.add(index, delta.thoughts)
        choice: dict[str, Any] = {
            "index": index,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if delta.logprobs:
            writer = offsets.setdefault(index, TextLogprobs(answer.front.prompts))
            choice["logprobs"] = writer.write(delta.logprobs)
        if body.return_token_ids:
            choice["token_ids"] = delta.token_ids
            if index not in begun:
                choice["prompt_token_ids"] = call.prompts[at]
            begun.add(index)
        if delta.finish_reason is not None:
            reasons[index] = delta.finish_reason
        if len(reasons) == len(call.streams) * answer.params.n:
            last = {**head, "choices": [choice]}  # told when it is known how all of them were come by
            continue
        usage_to_come = {"usage": None} if with_usage else {}
        yield sse_event({**head, "choices": [choice], **usage_to_come, **thoughts.about()})
    call.finished([reasons[index] for index in sorted(reasons)])
    about = {"holdfast": {**holdfast_object(call), **thoughts.take()}}
    if with_usage:
        yield sse_event({**last, "usage": None})
        yield sse_event({**head, "choices": [], "usage": usage(call), **about})
    else:
        yield sse_event({**last, **about})
    yield DONE


async def _collect(answer: CompletionResponse) -> dict[str, Any]:
    """The whole response."""
    call, params, body = answer.call, answer.params, answer.body
    choices = [_Choice(TextLogprobs(answer.front.prompts)) for _ in range(len(call.streams) * params.n)]
    async for at, delta in call.deltas():
        if delta is not None:
            choice = choices[answer.index(at, delta)]
            choice.text.append(delta.text)
            choice.token_ids.extend(delta.token_ids)
            choice.logprobs.extend(delta.logprobs or ())
            choice.thoughts.extend(delta.thoughts)
            choice.finish_reason = delta.finish_reason or choice.finish_reason
    call.finished([choice.finish_reason or "stop" for choice in choices])
    answer.fingerprint = await call.fingerprint()
    written = [
        _written(answer, index, choice, call.results[index // params.n])
        for index, choice in enumerate(choices)
    ]
    if body.return_token_ids:
        for index, one in enumerate(written):
            one["prompt_token_ids"] = call.prompts[index // params.n]
    about = {**holdfast_object(call), **all_thoughts(call, (choice.thoughts for choice in choices))}
    return {**answer.head(), "choices": written, "usage": usage(call), "holdfast": about}


def _written(answer: CompletionResponse, index: int, choice: _Choice, result: Result) -> dict[str, Any]:
    logprobs = None
    if answer.body.logprobs is not None:
        before = result.prompt_logprobs or ()
        first = answer.call.prompts[index // answer.params.n][0]
        logprobs = choice.offsets.write((*before, *choice.logprobs), first)
    written: dict[str, Any] = {
        "index": index,
        "text": "".join(choice.text),
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }
    if answer.body.return_token_ids:
        written["token_ids"] = choice.token_ids
    return written


def _params(body: CompletionRequest, front: Frontend) -> SamplingParams:
    echo = bool(body.echo)
    return sampling_params(
        body,
        front.config,
        max_tokens=_DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        structured=form_of(body),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if echo else None,
        echo=echo,
    )


def _prompts(body: CompletionRequest, most: int) -> list[str | list[int]]:
    """One entry a prompt. A list of numbers is one prompt."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "prompt is empty; give at least one token", param="prompt", code="invalid_value")
    if isinstance(prompt[0], int):
        return [[one for one in prompt if isinstance(one, int)]]
    if len(prompt) > most:
        raise ApiError(
            400,
            f"prompt holds {len(prompt)} prompts; at most {most} are allowed",
            param="prompt",
            code="invalid_value",
        )
    return [one for one in prompt if not isinstance(one, int)]


def _refuse_unsupported(body: CompletionRequest) -> None:
    refusals: tuple[tuple[str, Callable[[], bool], str], ...] = (
        (
            "best_of",
            lambda: body.best_of not in (None, body.n or 1),
            "best_of must equal n: answers are not ranked",
        ),
        ("suffix", lambda: bool(body.suffix), "suffix is not supported"),
        (
            "echo",
            lambda: bool(body.echo and body.stream and body.logprobs is not None),
            "echo with logprobs cannot be streamed: the prompt's logprobs come with the end; leave stream out",
        ),
    )
    for param, is_asked, why in refusals:
        if is_asked():
            raise ApiError(400, why, param=param, code="unsupported_value")
