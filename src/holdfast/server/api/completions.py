"""POST /v1/completions: completions of prompts, given as text or token ids, one or a batch."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Delta
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
from holdfast.server.http.sse import KEEP_ALIVE, end_with_error
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

    async def begin(call: Call) -> CompletionWriter:
        await _submit(frontend, call, prompts, body, params, token_ids)
        return CompletionWriter(frontend, call, body, params)

    return await frontend.respond(
        request,
        "text_completion",
        begin,
        deterministic=params.deterministic,
        num_choices=len(prompts) * params.n,
        stream=body.stream,
    )


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


class CompletionWriter:
    """Writes one response as its chunks, or as a whole."""

    def __init__(
        self, frontend: Frontend, call: Call, body: CompletionRequest, params: SamplingParams
    ) -> None:
        self._frontend = frontend
        self._call = call
        self._body = body
        self._params = params
        self._model_fields = ModelFields(call)
        self._created = int(time.time())
        self._writers: dict[int, TextLogprobs] = {}  # of a stream's choices

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield one chunk for each delta; the last chunk has the `holdfast` object."""
        call, body = self._call, self._body
        head = {"object": "text_completion", **self._head()}
        chunks = ChunkWriter(call, head, body.stream_options, self._model_fields)
        last_ids: dict[int, tuple[int, ...]] = {}
        started: set[int] = set()
        reasons: dict[int, str] = {}
        last: dict[str, Any] = {}
        async for batch in call.batches():
            events = [] if batch else [KEEP_ALIVE]
            for at, delta in batch:
                if delta.finish_reason == "error":
                    continue  # sent as an error event when the result arrives
                index = self._index(at, delta)
                self._model_fields.add(delta, index)
                choice: dict[str, Any] = {
                    "index": index,
                    "text": delta.text,
                    "logprobs": self._delta_logprobs(at, delta),
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
                if len(reasons) == len(call.streams) * self._params.n:
                    last = choice
                    continue
                events.append(chunks.chunk(choice))
            if events:
                yield b"".join(events)
        call.finished([reasons[index] for index in sorted(reasons)])
        yield chunks.end(last)

    def end_stream(self, error: ApiError) -> Sequence[bytes]:
        return end_with_error(error)

    async def whole(self) -> Completion:
        call, num = self._call, self._params.n
        choices = [_Choice(self._logprobs_writer(at)) for at in range(len(call.streams)) for _ in range(num)]
        async for batch in call.batches():
            for at, delta in batch:
                choice = choices[self._index(at, delta)]
                choice.text.append(delta.text)
                choice.token_ids.extend(delta.token_ids)
                choice.logprobs.extend(delta.logprobs or ())
                self._model_fields.add(delta, self._index(at, delta))
                if delta.finish_reason is not None:
                    choice.end = _end_fields(delta, choice.token_ids)
        call.finished([choice.end["finish_reason"] for choice in choices])
        await call.fingerprint()
        return Completion(
            **self._head(),
            choices=[self._entry(index, choice) for index, choice in enumerate(choices)],
            usage=usage(call),
            holdfast=holdfast_object(call, **self._model_fields.all()),
        )

    def _entry(self, index: int, choice: _Choice) -> CompletionChoice:
        body, at, is_echoed = self._body, index // self._params.n, self._params.echo
        prompt_ids, result = self._call.prompts[at], self._call.results[at]
        entry = CompletionChoice(index=index, text="".join(choice.text), logprobs=None, **choice.end)
        if body.logprobs is not None:
            before = (result.prompt_logprobs or ()) if is_echoed else ()
            entry.logprobs = choice.logprobs_writer.write(
                (*before, *choice.logprobs), prompt_ids[0], entry.text if is_echoed else None
            )
        if body.prompt_logprobs is not None:
            entry.prompt_logprobs = prompt_logprobs(self._frontend.prompts, result, body.prompt_logprobs)
        if body.return_token_ids:
            entry.token_ids, entry.prompt_token_ids = choice.token_ids, prompt_ids
        return entry

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._call.request_id}",
            "created": self._created,
            "model": self._frontend.model,
            "system_fingerprint": self._call.system_fingerprint,
        }

    def _logprobs_writer(self, at: int) -> TextLogprobs:
        """Return the writer of the logprobs of one choice, of the prompt with this index."""
        named = self._params.named_ids
        return TextLogprobs(
            self._frontend.prompts,
            len(named) + 1 if named else self._body.logprobs or 0,
            () if self._params.echo else self._call.prompts[at],
            as_ids=bool(self._body.return_tokens_as_token_ids),
            skip_special_tokens=self._params.skip_special_tokens,
        )

    def _delta_logprobs(self, at: int, delta: Delta) -> CompletionLogprobs | None:
        """Return the logprobs in a chunk of a stream. The first of an echo begin with those of the prompt."""
        if self._params.logprobs is None or not (delta.token_ids or delta.finish_reason):
            return None
        index, echoed = self._index(at, delta), None
        logprobs: Sequence[TokenLogprob | None] = delta.logprobs or ()
        if index not in self._writers:
            self._writers[index] = self._logprobs_writer(at)
            if self._params.echo:
                echoed, logprobs = delta.text, (*(self._call.streams[at].prompt_logprobs or ()), *logprobs)
        return self._writers[index].write(logprobs, self._call.prompts[at][0], echoed) if logprobs else None

    def _index(self, at: int, delta: Delta) -> int:
        """Return the index of a choice: choices of the first prompt first."""
        return at * self._params.n + delta.index


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
    if body.best_of not in (None, body.n or 1):
        why = "best_of must equal n: choices are not ranked"
        raise ApiError(400, why, param="best_of", code="unsupported_value")
    if body.suffix:
        raise ApiError(400, "suffix is not supported", param="suffix", code="unsupported_value")
