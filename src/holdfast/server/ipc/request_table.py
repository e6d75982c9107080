"""The requests that are not answered yet, whoever computes them: ids, messages, outputs, failures.

A subclass decides where a request is computed: `LiveRequests` in one engine process, the pool of
`holdfast.ray` in one of several replicas.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.request import Request
from holdfast.core.results import RequestOutput, Result
from holdfast.errors import EngineStopped, HoldfastError, PassFailed
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.response_stream import ResponseStream


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class ResumeCallbacks:
    """Called with what happens to requests whose engine process died."""

    on_resume: Callable[[bool], None] = _ignore  # (deterministic): it is submitted again
    on_continue: Callable[[float], None] = _ignore  # (seconds since the death): its next output
    on_crash: Callable[[], None] = _ignore  # it ends with `EngineCrashed`, or its failed pass


NO_CALLBACKS = ResumeCallbacks()


class RequestTable(ABC):
    """All requests of one server, in order of arrival.

    Without resumes they fail with the process that computes them.
    """

    def __init__(
        self,
        *,
        resumes: bool = True,
        callbacks: ResumeCallbacks = NO_CALLBACKS,
        first_id: int = 1,
    ) -> None:
        self.resumes = resumes
        self.ready: m.Ready | None = None  # of the last engine that was ready
        self.has_progressed = False  # an output arrived, or a request was given up, since the last death
        self._callbacks = callbacks
        self._next_id = first_id
        self._live: dict[int, ResponseStream] = {}
        self._error: HoldfastError | None = None

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Those that no engine has yet."""

    def submit(self, updated: asyncio.Event, request: Request) -> ResponseStream:
        """Number a request and send it; one that arrives while no engine is ready waits.

        Its stream says whether it was accepted; `updated` is set whenever something arrives.
        """
        self._require_open()
        request = replace(request, request_id=self._next_id)
        stream = ResponseStream(request, updated, self._cancel, keeps_record=self.resumes)
        self._begin(stream)
        self._next_id += request.params.n
        self._live[stream.request_id] = stream
        return stream

    @abstractmethod
    def _begin(self, stream: ResponseStream) -> None:
        """Send a new request, or have it wait. Raises for what cannot be encoded."""

    @abstractmethod
    async def wait_for_fingerprint(self) -> m.FingerprintReady:
        """The fingerprint of deterministic answers."""

    @abstractmethod
    def _cancel(self, stream: ResponseStream) -> None:
        """The reader of the stream left."""

    @abstractmethod
    def _require_open(self) -> None:
        """Raise `EngineStopped` if requests can neither be computed nor wait."""

    @abstractmethod
    def _on_pass_failed(self, stream: ResponseStream, failure: Result) -> None:
        """A pass of this request raised."""

    def close(self, error: HoldfastError) -> None:
        """No engine will come any more: every request fails with this error."""
        self._error = error
        self._fail_all(error)

    def _fail_all(self, error: HoldfastError) -> None:
        streams = list(self._live.values())
        self._live = {}
        for stream in streams:
            stream.fail(error)

    def _require_no_error(self) -> None:
        if self._error is not None:
            raise EngineStopped(str(self._error))

    def step(self, message: m.StepOutput) -> None:
        """What one step of the engine gave all requests."""
        for started in message.started:
            self.start(started.request_id, started.queue_seconds)
        for output in message.outputs:
            self.deliver(output)

    def start(self, request_id: int, queue_seconds: float) -> None:
        """A request left the engine's queue."""
        stream = self._live.get(request_id)
        if stream is not None:
            stream.start(queue_seconds)

    @abstractmethod
    def deliver(self, output: RequestOutput) -> None:
        """What one step gave one request."""

    def _receive(self, stream: ResponseStream, output: RequestOutput) -> bool:
        """What one step gave one request. Returns whether it is an output that proves progress."""
        delta, result = output.delta, output.result
        # A choice that ended in an error may be tried again: its error is in the result.
        if not delta.is_empty and delta.finish_reason != "error":
            stream.add(delta)
        elif result is None:
            return False
        if result is not None and result.error_code == PassFailed.code and self.resumes:
            self._on_pass_failed(stream, result)
            return False
        self.has_progressed = True
        if stream.paused_at is not None:
            self._callbacks.on_continue(time.monotonic() - stream.paused_at)
            stream.paused_at = None
        if stream.is_suspect:
            stream.is_suspect, stream.num_lone_deaths, stream.last_failure = False, 0, None
        if result is not None:
            del self._live[output.request_id]
            stream.finish(result)
        return True
