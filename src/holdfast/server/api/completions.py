"""POST /v1/completions: completions of prompts, given as text or token ids, one or a batch.

`_stream` writes the server-sent chunks, `_collect` the whole response.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Delta, Result
from holdfast.core.sampling_params import RestOfContext, SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.model_fields import ModelFields, check_fields
from holdfast.server.api.response_fields import (
    ChunkWriter,
    TextLogprobs,
    holdfast_object,
    matched_stop,
    prompt_logprobs,
    usage,
)
from holdfast.server.api.sampling import (
    max_prompt_len,
    parse_structured_output,
    prompt_list,
    refuse_contradictions,
    sampling_params,
    submit_rest,
    truncate_prompt,
)
from holdfast.server.api.schema.objects import Completion, CompletionChoice, CompletionLogprobs
from holdfast.server.api.schema.openapi import ENGINE_ERRORS, documented
from holdfast.server.api.schema.requests import CompletionRequest
from holdfast.server.call import Call
from holdfast.server.errors import ApiError
from holdfast.server.frontend import Frontend
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.sse import KEEP_ALIVE, EventStreamResponse, JSONResponse
from holdfast.server.served_models import ServedModels

_DEFAULT_MAX_TOKENS = 16


def completion_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["completions"])

    @router.post(
        "/v1/completions",
        **documented(Completion, ENGINE_ERRORS, body=CompletionRequest, streams=True),
    )
    async def completions(request: Request) -> Response:
        """Create completions of one or several prompts."""
        body = await models.bodies.read(request, CompletionRequest)
        frontend = models.choose(body.model)
        return await complete(request, frontend, body)

    return router


async def complete(
    request: Request, frontend: Frontend, body: CompletionRequest, token_ids: Sequence[int] | None = None
) -> Response:
    """Run a completion, streamed or not. token_ids: what the client has of the answer."""
    _refuse_unsupported(body)
    prompts = prompt_list(body.prompt, 1 if token_ids is not None else frontend.config.max_prompts, "prompt")
    params = await frontend.prepare(request, lambda token: _params(body, frontend))
    async with AsyncExitStack() as stack:
        call = await stack.enter_async_context(
            frontend.call(
                request,
                "text_completion",
                deterministic=params.deterministic,
                num_choices=len(prompts) * params.n,
                stream=bool(body.stream),
            )
        )
        response = CompletionResponse(frontend, call, body, params)
        await run_until_disconnect(request, _submit(frontend, call, prompts, body, params, token_ids))
        return await send_completion(request, response, stack)


async def send_completion(
    request: Request, response: "CompletionResponse", resources: AsyncExitStack
) -> Response:
    """Return the HTTP response. resources are closed when the answer ends; those of a stream by its
    response."""
    if response.body.stream:
        response.fingerprint = await run_until_disconnect(request, response.call.fingerprint())
        send_timeout = response.frontend.config.send_timeout
        return EventStreamResponse(_stream(response), resources.pop_all(), send_timeout=send_timeout)
    return JSONResponse(await run_until_disconnect(request, _collect(response)))


async def _submit(
    frontend: Frontend,
    call: Call,
    prompts: list[str | list[int]],
    body: CompletionRequest,
    params: SamplingParams,
    token_ids: Sequence[int] | None,
) -> None:
    check_fields(call, body)
    add_special_tokens = body.add_special_tokens is not False
    answer_len = 1 if isinstance(params.max_tokens, RestOfContext) else params.max_tokens
    room = max_prompt_len(frontend) - answer_len
    for prompt in prompts:
        given = prompt
        if isinstance(given, str):
            whole = body.truncate_prompt_tokens is not None
            given = await call.encode(given, add_special_tokens=add_special_tokens, whole=whole)
        ids = truncate_prompt(body, given, room)
        frontend.prompts.require_room(len(ids))
        if token_ids is not None:
            await submit_rest(frontend, call, body, ids, params, token_ids)
            return
        await call.submit(
            ids,
            params,
            echo_text=prompt if isinstance(prompt, str) and len(ids) == len(given) else None,
            want_receipt=bool(body.return_receipt),
            cache_salt=body.cache_salt,
        )
    await call.accepted()


@dataclass
class _Choice:
    logprobs_writer: TextLogprobs
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)  # why it ended


def _end_fields(delta: Delta, token_ids: Sequence[int]) -> dict[str, Any]:
    return {
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
        "matched_stop": matched_stop(delta, token_ids),
    }


class CompletionResponse:
    """The state of one response."""

    def __init__(
        self, frontend: Frontend, call: Call, body: CompletionRequest, params: SamplingParams
    ) -> None:
        self.frontend = frontend
        self.call = call
        self.body = body
        self.params = params
        self.fingerprint = ""
        self.id = f"cmpl-{call.request_id}"
        self.created = int(time.time())
        self._writers: dict[int, TextLogprobs] = {}  # of a stream's choices

    def head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "created": self.created,
            "model": self.frontend.model,
            "system_fingerprint": self.fingerprint,
        }

    def logprobs_writer(self, at: int) -> TextLogprobs:
        """Return the writer of the logprobs of one choice, of the prompt with this index."""
        named = self.params.named_ids
        return TextLogprobs(
            self.frontend.prompts,
            len(named) + 1 if named else self.body.logprobs or 0,
            () if self.params.echo else self.call.prompts[at],
            as_ids=bool(self.body.return_tokens_as_token_ids),
            skip_special_tokens=self.params.skip_special_tokens,
        )

    def delta_logprobs(self, at: int, delta: Delta) -> CompletionLogprobs | None:
        """Return the logprobs in a chunk of a stream. The first of an echo begin with those of the prompt."""
        if self.params.logprobs is None or not (delta.token_ids or delta.finish_reason):
            return None
        index, echoed = self.index(at, delta), None
        logprobs: Sequence[TokenLogprob | None] = delta.logprobs or ()
        if index not in self._writers:
            self._writers[index] = self.logprobs_writer(at)
            if self.params.echo:
                echoed, logprobs = delta.text, (*(self.call.streams[at].prompt_logprobs or ()), *logprobs)
        return self._writers[index].write(logprobs, self.call.prompts[at][0], echoed) if logprobs else None

    def index(self, at: int, delta: Delta) -> int:
        """Return the index of a choice: choices of the first prompt first."""
        return at * self.params.n + delta.index


async def _stream(response: CompletionResponse) -> AsyncIterator[bytes]:
    """Yield one chunk for each delta; the last chunk has the `holdfast` object."""
    call, body = response.call, response.body
    model_fields = ModelFields(call)
    head = {"object": "text_completion", **response.head()}
    chunks = ChunkWriter(call, head, body.stream_options, model_fields)
    last_ids: dict[int, tuple[int, ...]] = {}
    started: set[int] = set()
    reasons: dict[int, str] = {}
    last: dict[str, Any] = {}
    async for batch in call.batches():
        events = [] if batch else [KEEP_ALIVE]
        for at, delta in batch:
            if delta.finish_reason == "error":
                continue  # sent as an error event when the result arrives
            index = response.index(at, delta)
            model_fields.add(delta, index)
            choice: dict[str, Any] = {
                "index": index,
                "text": delta.text,
                "logprobs": response.delta_logprobs(at, delta),
                "finish_reason": None,
            }
            if delta.token_ids:
                last_ids[index] = delta.token_ids
            if body.return_token_ids:
                choice["token_ids"] = delta.token_ids
                if index not in started:
                    choice["prompt_token_ids"] = call.prompts[at]
                started.add(index)
            if delta.finish_reason is not None:
                reasons[index] = delta.finish_reason
                choice |= _end_fields(delta, last_ids.get(index, ()))
            if len(reasons) == len(call.streams) * response.params.n:
                last = choice
                continue
            events.append(chunks.chunk(choice))
        if events:
            yield b"".join(events)
    call.finished([reasons[index] for index in sorted(reasons)])
    yield chunks.end(last)


async def _collect(response: CompletionResponse) -> Completion:
    call, params = response.call, response.params
    model_fields = ModelFields(call)
    choices = [
        _Choice(response.logprobs_writer(index // params.n)) for index in range(len(call.streams) * params.n)
    ]
    async for batch in call.batches():
        for at, delta in batch:
            choice = choices[response.index(at, delta)]
            choice.text.append(delta.text)
            choice.token_ids.extend(delta.token_ids)
            choice.logprobs.extend(delta.logprobs or ())
            model_fields.add(delta, response.index(at, delta))
            if delta.finish_reason is not None:
                choice.end = _end_fields(delta, choice.token_ids)
    call.finished([choice.end["finish_reason"] for choice in choices])
    response.fingerprint = await call.fingerprint()
    return Completion(
        **response.head(),
        choices=[
            _choice_entry(response, index, choice, call.results[index // params.n])
            for index, choice in enumerate(choices)
        ],
        usage=usage(call),
        holdfast=holdfast_object(call, **model_fields.all()),
    )


def _choice_entry(
    response: CompletionResponse, index: int, choice: _Choice, result: Result
) -> CompletionChoice:
    body, call = response.body, response.call
    prompt_ids, is_echoed = call.prompts[index // response.params.n], response.params.echo
    entry = CompletionChoice(index=index, text="".join(choice.text), logprobs=None, **choice.end)
    if body.logprobs is not None:
        before = (result.prompt_logprobs or ()) if is_echoed else ()
        entry.logprobs = choice.logprobs_writer.write(
            (*before, *choice.logprobs), prompt_ids[0], entry.text if is_echoed else None
        )
    if body.prompt_logprobs is not None:
        entry.prompt_logprobs = prompt_logprobs(response.frontend.prompts, result, body.prompt_logprobs)
    if body.return_token_ids:
        entry.token_ids, entry.prompt_token_ids = choice.token_ids, prompt_ids
    return entry


def _params(body: CompletionRequest, frontend: Frontend) -> SamplingParams:
    echo = bool(body.echo)
    wanted = [one for one in (body.prompt_logprobs, body.logprobs if echo else None) if one is not None]
    return sampling_params(
        body,
        frontend.config,
        max_tokens=_DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        structured=parse_structured_output(body),
        logprobs=body.logprobs,
        prompt_logprobs=max(wanted, default=None),
        echo=echo,
    )


def _refuse_unsupported(body: CompletionRequest) -> None:
    refuse_contradictions(body)
    for param, is_requested, why in (
        (
            "best_of",
            body.best_of not in (None, body.n or 1),
            "best_of must equal n: choices are not ranked",
        ),
        ("suffix", body.suffix, "suffix is not supported"),
    ):
        if is_requested:
            raise ApiError(400, why, param=param, code="unsupported_value")
