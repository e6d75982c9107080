"""One HTTP request's dealings with the engine: its places, its tickets, its deadline, what is counted and logged of it.

    async with front.call(...) as call:      places are taken, or the request is refused
        call.submit(...)                     once for each prompt
        await call.accepted()
        async for at, piece in call.pieces(): ...
        call.outcomes                        one for each prompt

Leaving it frees everything, however it is left: an answer, an error, a client that went away.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

from holdfast.core.results import Determinism, Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import EngineStopped, HoldfastError
from holdfast.server.errors import ApiError, failed_answer, to_api_error
from holdfast.server.ipc.engine_link import EngineLink
from holdfast.server.ipc.messages import Piece, RequestResult
from holdfast.server.ipc.response_stream import ResponseStream
from holdfast.server.telemetry.request_metrics import RequestMetrics
from holdfast.server.telemetry.traces import TraceSpan

_QUIET_SECONDS = 15.0
_CLIENT_LEFT = 499  # as the access log says
_WEAKEST_FIRST: tuple[Determinism, ...] = ("none", "verified", "certified")


class Call:
    """Made by the front. Not to be used before it is entered."""

    def __init__(
        self,
        request_id: str,
        link: EngineLink,
        metrics: RequestMetrics,
        begin_span: Callable[[SamplingParams | None], TraceSpan],
        timeout: float,
    ) -> None:
        self.request_id = request_id
        self.began = time.monotonic()
        self.first_token: float | None = None
        self.prompts: list[Sequence[int]] = []
        self.num_completion_tokens = 0
        self.finish_reasons: tuple[str, ...] = ()
        self.tickets: list[ResponseStream] = []
        self._link = link
        self._metrics = metrics
        self._begin_span = begin_span
        self._span: TraceSpan | None = None
        self._error: Exception | None = None  # why nothing more is asked
        self._bell = asyncio.Event()
        self._told_begun = False
        self._num_choices = 1  # of each prompt
        self._deadline = asyncio.get_running_loop().call_later(timeout, self._expire, timeout)

    async def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        echo_text: str | None = None,
        *,
        with_receipt: bool = False,
    ) -> None:
        """Ask the engine for the answers to one prompt. The engine's loop must not wait for the fingerprint of a receipt."""
        if with_receipt:
            await self.fingerprint()
        self._require_open()
        self.prompts.append(prompt_ids)
        self._num_choices = params.n
        self._traced(params)
        with _told():
            self.tickets.append(
                self._link.submit(self._bell, prompt_ids, params, echo_text, with_receipt=with_receipt)
            )

    async def submit_score(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        params: SamplingParams,
        *,
        with_receipt: bool,
    ) -> None:
        """Ask for the logprobs of a completion."""
        if with_receipt:
            await self.fingerprint()
        self._require_open()
        self.prompts.append([*prompt_ids, *completion_ids])
        self._traced()
        with _told():
            self.tickets.append(
                self._link.submit_score(
                    self._bell, prompt_ids, completion_ids, params, with_receipt=with_receipt
                )
            )

    async def fingerprint(self) -> str:
        """What a response calls `system_fingerprint`: of the engine that answered, even if it is no more."""
        with _told():
            return (await self._link.named()).digest

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def thinks(self) -> bool:
        """Whether the model that answers does."""
        ready = self._link.ready
        return ready is not None and ready.chunk > 0

    async def accepted(self) -> None:
        """Once the engine took every request. Raises what it refused one for."""
        while True:
            self._raise_errors()
            if all(ticket.seed is not None for ticket in self.tickets):
                return
            await self._ring()

    async def pieces(self) -> AsyncIterator[tuple[int, Piece | None]]:
        """(which prompt, piece) as they come; (0, None) now and then while nothing comes. Ends with the last outcome."""
        heard = time.monotonic()
        while True:
            for at, ticket in enumerate(self.tickets):
                while ticket.pieces:
                    piece = ticket.pieces.popleft()
                    self._count(ticket, piece)
                    heard = time.monotonic()
                    yield at, piece
            self._raise_errors()
            if all(ticket.outcome is not None for ticket in self.tickets):
                return
            await self._ring()
            if time.monotonic() - heard >= _QUIET_SECONDS:
                heard = time.monotonic()
                yield 0, None

    @property
    def outcomes(self) -> list[RequestResult]:
        """How each ended. Only behind the last piece."""
        return [ticket.outcome for ticket in self.tickets if ticket.outcome is not None]

    @property
    def mode(self) -> Determinism:
        """How the answers were made, where several were: the weakest promise that holds for all."""
        modes = {outcome.determinism for outcome in self.outcomes}
        return next((mode for mode in _WEAKEST_FIRST if mode in modes), "none")

    def end(self, error: Exception) -> None:
        """Give up what still runs, and what would still be asked, and tell whoever waits why."""
        self._error = error
        for ticket in self.tickets:
            ticket.leave(error)

    def finished(self, reasons: Sequence[str]) -> None:
        """Every answer is there; why each ended."""
        self.finish_reasons = tuple(reasons)
        stats = sum_stats(self.outcomes)
        counts = self.num_prompt_tokens, self.num_completion_tokens
        self._metrics.finished(reasons[-1], *counts, stats, self._num_choices)
        self._traced().finished(reasons, *counts, self.mode, stats)

    def aborted(self) -> None:
        """The client went away."""
        self.finish_reasons = self.finish_reasons or ("abort",)
        counts = self.num_prompt_tokens, self.num_completion_tokens
        self._metrics.finished("abort", *counts, sum_stats(self.outcomes), self._num_choices)
        self._traced().failed("client_left", _CLIENT_LEFT)

    def failed(self, code: str, status: int) -> None:
        """The client was told of an error instead."""
        self._metrics.failed(code)
        self._traced().failed(code, status)

    def close(self) -> None:
        """Let go of everything."""
        self._deadline.cancel()
        self.end(EngineStopped("the client left"))

    def _expire(self, timeout: float) -> None:
        self.end(ApiError(504, f"the answer took longer than {timeout:g} seconds", code="timeout"))

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _raise_errors(self) -> None:
        for ticket in self.tickets:
            if isinstance(ticket.error, HoldfastError):
                raise to_api_error(ticket.error)
            if ticket.error is not None:
                raise ticket.error
            if ticket.outcome is not None and ticket.outcome.error is not None:
                raise failed_answer(ticket.outcome.error)

    async def _ring(self) -> None:
        handle = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._bell.set)
        try:
            await self._bell.wait()
        finally:
            handle.cancel()
        self._bell.clear()

    def _traced(self, params: SamplingParams | None = None) -> TraceSpan:
        """The span, begun when it is known what is asked for."""
        if self._span is None:
            self._span = self._begin_span(params)
        return self._span

    def _count(self, ticket: ResponseStream, piece: Piece) -> None:
        if not self._told_begun and ticket.queue_seconds is not None:
            self._told_begun = True
            self._metrics.started(ticket.queue_seconds)
            self._traced().started(ticket.queue_seconds)
        if piece.thoughts:
            self._metrics.thoughts(piece.thoughts)
        if piece.token_ids:
            if self.first_token is None:
                self.first_token = time.monotonic()
                self._traced().first_token()
            self.num_completion_tokens += len(piece.token_ids)
            self._metrics.tokens(ticket.number << 8 | piece.index, len(piece.token_ids))


@contextmanager
def _told() -> Iterator[None]:
    """An error of the engine's, as a client is told of it."""
    try:
        yield
    except HoldfastError as error:
        raise to_api_error(error) from None


def sum_stats(outcomes: Sequence[RequestResult]) -> Stats:
    """What all of them cost together."""
    return Stats(
        **{one.name: sum(getattr(outcome.stats, one.name) for outcome in outcomes) for one in fields(Stats)}
    )
