"""What the chat routes share: submission of a conversation, and the state of its choices.

`POST /v1/chat/completions`, `/v1/responses` and `/v1/messages` translate their bodies into a
`ChatCompletionRequest`. From there on they are one: prompt, sampling parameters, admission, engine.
They differ in the JSON they write of a `ChatResponse`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.results import Delta
from holdfast.core.step_plan import TokenLogprob
from holdfast.errors import RequestError
from holdfast.server.api.chat_plan import ChatPlan, plan_chat
from holdfast.server.api.model_fields import ModelFields, check_fields
from holdfast.server.api.response_fields import chat_logprobs, matched_stop
from holdfast.server.api.sampling import submit_rest
from holdfast.server.api.schema.objects import ChatCompletionLogprobs
from holdfast.server.api.schema.requests import ChatCompletionRequest
from holdfast.server.call import Call
from holdfast.server.frontend import Frontend, ResponseWriter
from holdfast.server.reasoning.chat_format import AnswerParser
from holdfast.server.tools.deltas import ChoiceDelta, ReasoningDelta, ToolCallDelta, finish_reason


class ChatResponse:
    """The state of one response."""

    def __init__(self, frontend: Frontend, call: Call, body: ChatCompletionRequest, plan: ChatPlan) -> None:
        self.frontend = frontend
        self.call = call
        self.body = body
        self.created = int(time.time())
        shows_reasoning = body.include_reasoning is not False
        parsers = plan.parsers(call.streams[0].request.seed, body.n or 1)
        self.choices = [ChatChoice(parser, shows_reasoning=shows_reasoning) for parser in parsers]
        self.model_fields = ModelFields(call)
        self._has_reasoning = plan.chat_format.has_reasoning

    def logprobs(self, logprobs: list[TokenLogprob]) -> ChatCompletionLogprobs | None:
        if not self.body.logprobs:
            return None
        as_ids = bool(self.body.return_tokens_as_token_ids)
        return chat_logprobs(self.frontend.prompts, logprobs, as_ids=as_ids)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """The tokens of thinking; None if this model's thinking is not separated."""
        if not self._has_reasoning:
            return None
        return sum(choice.num_reasoning_tokens for choice in self.choices)

    def finished(self) -> None:
        """Note that every choice has ended."""
        self.call.finished([choice.finish_reason or "stop" for choice in self.choices])

    async def collect(self) -> None:
        """Wait until every choice has ended."""
        async for batch in self.call.batches():
            for _, delta in batch:
                self.model_fields.add(delta)
                self.choices[delta.index].add(delta)
        self.finished()
        await self.call.fingerprint()


class ParsedDelta(NamedTuple):
    """What one delta of the engine gave a choice. num_hidden: tokens, of this or of earlier deltas,
    that are in no content."""

    deltas: list[ChoiceDelta]
    logprobs: tuple[TokenLogprob, ...]
    num_hidden: int = 0


class ChatChoice:
    """The state of one choice: its text, parsed into thinking, content and tool calls.

    shows_reasoning: whether the client wants the thinking.
    """

    def __init__(self, parser: AnswerParser, *, shows_reasoning: bool = True) -> None:
        self._parser = parser
        self._shows_reasoning = shows_reasoning
        self.steps: list[ParsedDelta] = []
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.matched_stop: str | int | None = None
        self._num_skipped = 0  # tokens of thinking that the client has
        self._begun: dict[int, ToolCallDelta] = {}  # calls that began in what it has, until they go on
        self._num_calls = 0  # all calls in what it has

    @property
    def deltas(self) -> list[ChoiceDelta]:
        return [delta for step in self.steps for delta in step.deltas]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [one for step in self.steps for one in step.logprobs]

    @property
    def num_reasoning_tokens(self) -> int:
        return self._parser.num_reasoning_tokens - self._num_skipped

    def skip(self, delta: Delta) -> None:
        """Parse what the client has already, so that the rest is read as what follows it."""
        self.add(delta)
        self._num_skipped = self._parser.num_reasoning_tokens
        self._begun = {one.index: one for one in self.deltas if isinstance(one, ToolCallDelta) and one.id}
        self._num_calls = len(self._begun)
        self.steps.clear()
        self.token_ids.clear()

    def _named(self, delta: ChoiceDelta) -> ChoiceDelta:
        """Give the first delta of a call that goes on its id and name again: the response is read alone."""
        if not isinstance(delta, ToolCallDelta) or delta.index not in self._begun:
            return delta
        return replace(self._begun.pop(delta.index), arguments=delta.arguments)

    def add(self, delta: Delta) -> ParsedDelta:
        """Parse a delta's text."""
        self.token_ids.extend(delta.token_ids)
        num_hidden = self._parser.num_hidden_tokens
        new = self._parser.feed(delta)
        if delta.finish_reason is not None:
            new += self._parser.finish()
        if not self._shows_reasoning:
            new = [one for one in new if not isinstance(one, ReasoningDelta)]
        if self._begun:
            new = [self._named(one) for one in new]
        num_hidden = self._parser.num_hidden_tokens - num_hidden
        self.steps.append(ParsedDelta(new, delta.logprobs or (), num_hidden))
        if delta.finish_reason is not None:
            num_calls = sum(isinstance(one, ToolCallDelta) and one.id is not None for one in self.deltas)
            self.finish_reason = finish_reason(delta.finish_reason, self._num_calls + num_calls)
            self.stop_reason = delta.stop_reason
            self.matched_stop = matched_stop(delta, self.token_ids)
        return self.steps[-1]


async def serve_chat(
    request: Request,
    frontend: Frontend,
    body: ChatCompletionRequest,
    make_writer: Callable[[ChatResponse], ResponseWriter],
    token_ids: Sequence[int] | None = None,
) -> Response:
    """Run a conversation, streamed or not. token_ids: what the client has of the answer."""
    size = len(await request.body())

    async def begin(call: Call) -> ResponseWriter:
        return make_writer(await _submit(frontend, call, body, size, token_ids))

    num_choices, deterministic = body.n or 1, body.deterministic
    return await frontend.respond(
        request, "chat", begin, deterministic=deterministic, num_choices=num_choices, stream=body.stream
    )


async def _submit(
    frontend: Frontend,
    call: Call,
    body: ChatCompletionRequest,
    size: int,
    token_ids: Sequence[int] | None,
) -> ChatResponse:
    """Plan the chat and submit the request to the engine. size is that of its body."""
    check_fields(call, body)
    plan = await call.run(lambda token: plan_chat(frontend, body, token), size=size)
    given = None
    try:
        if token_ids is not None:
            given = await submit_rest(frontend, call, body, plan.ids, plan.params, token_ids)
        else:
            await call.submit(
                plan.ids, plan.params, want_receipt=bool(body.return_receipt), cache_salt=body.cache_salt
            )
            await call.accepted()
    except RequestError as error:
        raise type(error)(plan.explain(str(error))) from None
    response = ChatResponse(frontend, call, body, plan)
    if given is not None:
        response.choices[0].skip(given)
    return response
