"""One HTTP request's use of the engine: response streams, deadline, metrics, trace span.

    async with frontend.call(...) as call:   admits the request, or refuses it
        await call.submit(...)               once for each prompt
        await call.accepted()
        async for batch in call.batches(): for index, delta in batch: ...
        call.results                         one for each prompt

Leaving the context frees everything, however it is left: with an answer, an error, or because the
client disconnected.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from holdfast.core.pooling import Pooling
from holdfast.core.request import RequestDefaults
from holdfast.core.results import Delta, Determinism, Result, Stats, sum_stats, weakest
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.errors import EngineStopped, GuaranteeLost, PassFailed, make_error
from holdfast.server.errors import ApiError
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.ipc.response_stream import ResponseStream
from holdfast.server.prompts import PromptReader
from holdfast.server.telemetry.request_metrics import RequestMetrics
from holdfast.server.telemetry.traces import Operation
from holdfast.server.tenants.admission import TokenMeter
from holdfast.server.tenants.tenant import Tenant
from holdfast.server.tenants.work_queue import Work

_QUIET_SECONDS = 15.0
_PAUSED_SECONDS = 5.0  # while the engine process is restarted
_TIMER_SLACK = 0.1  # seconds that a timer of the event loop may fire early

T = TypeVar("T")


class Call:
    """Made by the `Frontend`."""

    def __init__(
        self,
        request_id: str,
        operation: Operation,
        requests: RequestTable,
        defaults: RequestDefaults,
        *,
        deterministic: bool,
        stream: bool,
        tenant: Tenant,
        meter: TokenMeter,
        prompts: PromptReader,
        metrics: RequestMetrics,
        timeout: float,
    ) -> None:
        self.request_id = request_id  # of the HTTP request
        self.operation: Operation = operation
        self.deterministic = deterministic
        self.stream = stream
        self.tenant = tenant
        self.metrics = metrics
        self.prompts: list[Sequence[int]] = []
        self.system_fingerprint = ""  # of the response, once it is known
        self.params: SamplingParams | None = None  # of the first prompt, if it is to be answered
        self.num_choices = 1  # for each prompt
        self.finish_reasons: tuple[str, ...] = ()  # once every choice has ended
        self.failure: tuple[str, int] | None = None  # error code and HTTP status, if it ended without that
        self.streams: list[ResponseStream] = []
        self._requests = requests
        self._defaults = defaults
        self._meter = meter
        self._prompts = prompts
        self._error: Exception | None = None  # once the call is cancelled
        self._updated = asyncio.Event()
        self._is_continued = False  # the client sent the beginning of the answer
        self._unconfirmed: set[int] = set()  # its choices that the engine has not confirmed yet
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(timeout, self._expire, timeout)
        self._timer: asyncio.TimerHandle | None = None  # ends a wait
        self._wait_until = 0.0

    async def run(self, work: Work[T], *, size: int) -> T:
        """Do work in the client's turn. size: of its input, in bytes."""
        return await self._prompts.run(self.tenant.id, work, size=size)

    async def encode(self, text: str, *, add_special_tokens: bool = True, whole: bool = False) -> list[int]:
        """Tokenise a text in the client's turn; see `PromptReader.encode`."""
        return await self._prompts.encode(
            text, client=self.tenant.id, add_special_tokens=add_special_tokens, whole=whole
        )

    async def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        completion_ids: Sequence[int] | None = None,
        echo_text: str | None = None,
        want_receipt: bool = False,
        cache_salt: str | None = None,
        pooling: Pooling | None = None,
        sent: tuple[Sent, ...] = (),
    ) -> None:
        """Send the engine one prompt; with completion_ids, to score this completion; with pooling,
        to embed it; with sent, to continue answers that the client has so far.

        A receipt needs the fingerprint. Wait for it here, so that the engine's loop never has to.
        """
        if want_receipt:
            await self.fingerprint()
        self._require_open()
        assert self._requests.ready is not None
        request = self._defaults.request(
            prompt_ids,
            params,
            max_model_len=self._requests.ready.max_len,
            completion_ids=completion_ids,
            echo_text=echo_text,
            want_receipt=want_receipt,
            cache_salt=self.tenant.salt(cache_salt),
            pooling=pooling,
            share=self.tenant.share,
            sent=sent,
        )
        if not self.prompts and completion_ids is None and pooling is None:
            self.params = request.params
        self.prompts.append(request.prompt_ids)
        self.num_choices = params.n
        self._is_continued = bool(sent)
        stream = self._requests.submit(self._updated, request)
        self.streams.append(stream)
        for index, answer in enumerate(sent):
            if answer.finish_reason is None:
                self._unconfirmed.add(index)
            else:  # the engine has no more output of it
                stream.deltas.append(Delta(index=index, finish_reason=answer.finish_reason))
        self._meter.add_prompt(request.prompt_len, params.n, request.params.max_tokens)

    async def fingerprint(self) -> str:
        """The `system_fingerprint` of the response.

        It is that of the engine that answered, even if it has ended since.
        """
        known = {None if one.fingerprint is None else one.fingerprint.digest for one in self.streams}
        digest = known.pop() if len(known) == 1 else None
        self.system_fingerprint = digest or (await self._requests.wait_for_fingerprint()).digest
        return self.system_fingerprint

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas of a pool that computed the prompts, in order."""
        return tuple(dict.fromkeys(one for stream in self.streams for one in stream.replicas))

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_completion_tokens(self) -> int:
        return self.metrics.num_generated

    @property
    def num_answers(self) -> tuple[int, int]:
        """The answers that are being generated, and those that wait."""
        open_streams = [stream for stream in self.streams if not stream.is_over]
        num_started = sum(stream.queue_seconds is not None for stream in open_streams)
        return num_started * self.num_choices, (len(open_streams) - num_started) * self.num_choices

    @property
    def has_model_fields(self) -> bool:
        """Whether the model adds fields to bodies and responses (`api/model_fields.py`)."""
        ready = self._requests.ready
        return ready is not None and ready.extension is not None

    async def accepted(self) -> None:
        """Wait until the engine accepted every prompt, and confirmed what was sent of its answers. Raises if it
        refused one, or if what was sent does not come out again."""
        self._raise_errors()
        while not all(stream.was_accepted for stream in self.streams):
            await self._wait(_QUIET_SECONDS)
            self._raise_errors()
        if self._unconfirmed:
            await self._confirmed()

    async def _confirmed(self) -> None:
        """Wait for an output of every choice: it comes after what was sent has been confirmed."""
        (stream,), num_seen = self.streams, 0
        while stream.result is None:
            self._raise_errors()
            new = islice(reversed(stream.deltas), len(stream.deltas) - num_seen)
            self._unconfirmed.difference_update([one.index for one in new if one.finish_reason != "error"])
            num_seen = len(stream.deltas)
            if not self._unconfirmed:
                return
            await self._wait(_QUIET_SECONDS)
        self._raise_errors()

    async def batches(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """All deltas that are there, each with the index of its prompt, then those that come next. One batch
        is one write to the client: a write costs as much as the rest of an event.

        An empty batch comes after 15 seconds without a delta, and when the engine process is restarted.
        The last batch comes before the last result.
        """
        last = time.monotonic()
        was_paused = False
        while True:
            if batch := [*self._take_deltas()]:
                last = time.monotonic()
                yield batch
            self._raise_errors()
            if all(stream.result is not None for stream in self.streams):
                return
            await self._wait(_PAUSED_SECONDS if was_paused else _QUIET_SECONDS)
            begins, was_paused = not was_paused, any(one.paused_at is not None for one in self.streams)
            quiet = _PAUSED_SECONDS if was_paused else _QUIET_SECONDS
            if (was_paused and begins) or time.monotonic() - last >= quiet - _TIMER_SLACK:
                last = time.monotonic()
                yield []

    def _take_deltas(self) -> Iterator[tuple[int, Delta]]:
        for index, stream in enumerate(self.streams):
            while stream.deltas and not stream.holds_back:
                delta = stream.deltas.popleft()
                self._count(stream, delta)
                yield index, delta

    @property
    def results(self) -> list[Result]:
        """The result of each prompt, without its choices. Complete after the last delta."""
        return [stream.result for stream in self.streams if stream.result is not None]

    @property
    def mode(self) -> Determinism:
        return weakest(result.determinism for result in self.results)

    @property
    def stats(self) -> Stats:
        return sum_stats([result.stats for result in self.results])

    def cancel(self, error: Exception) -> None:
        """End what still runs and refuse further prompts, with this error."""
        self._error = error
        for stream in self.streams:
            stream.cancel(error)

    def finished(self, reasons: Sequence[str]) -> None:
        """Note that every choice has ended, for these reasons."""
        self.finish_reasons = tuple(reasons)

    def failed(self, code: str, status: int) -> None:
        """Note that the client got an error, or left. What happens after the end of all choices does not count."""
        if not self.finish_reasons:
            self.failure = code, status

    def close(self) -> None:
        self._deadline.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._meter.close(was_accepted=any(stream.was_accepted for stream in self.streams))
        self.cancel(EngineStopped("the client left"))

    def _expire(self, timeout: float) -> None:
        self.cancel(ApiError(504, f"the answer took longer than {timeout:g} seconds", code="timeout"))

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _raise_errors(self) -> None:
        for stream in self.streams:
            if stream.error is not None:
                raise stream.error
            if stream.result is not None and stream.result.error is not None:
                code = stream.result.error_code or PassFailed.code
                raise (
                    _contradiction()
                    if self._is_continued and code == GuaranteeLost.code
                    else make_error(code, stream.result.error)
                )

    async def _wait(self, seconds: float) -> None:
        self._wait_until = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._wait_until:
            self._set_timer(seconds)
        await self._updated.wait()
        self._updated.clear()

    def _set_timer(self, seconds: float) -> None:
        """One timer serves many waits: to set and cancel one for every token takes long."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._end_wait)

    def _end_wait(self) -> None:
        self._timer = None
        left = self._wait_until - self._loop.time()
        if left > 0:
            self._set_timer(left)
        else:
            self._updated.set()

    def _count(self, stream: ResponseStream, delta: Delta) -> None:
        if stream.queue_seconds is not None:
            self.metrics.started(stream.queue_seconds)
        self.metrics.received(stream.request_id + delta.index, delta)
        if delta.token_ids:
            self._meter.add_generated(len(delta.token_ids))


def _contradiction() -> ApiError:
    return ApiError(
        409,
        "the request does not give the answer so far: a token or the bits of its logprob come out differently, so "
        "nothing was generated. POST /v1/replay shows where a receipt differs",
        code=GuaranteeLost.code,
    )
