"""The outputs of one request, on their way from the engine process to a `Call`."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from holdfast.core.request import Request
from holdfast.core.results import Delta, Result
from holdfast.core.sent import Sent
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.ipc.engine_port import EnginePort
from holdfast.server.ipc.messages import FingerprintReady


class ResponseStream:
    """One request at an engine, as the frontend holds it.

    The `RequestTable` fills it, a `Call` reads it. It sets the event `updated` whenever something
    arrives. Cancelling it frees the request's pages within a step; what still arrives for it is
    dropped. `request` is what another engine continues it from.
    """

    def __init__(
        self,
        request: Request,
        updated: asyncio.Event,
        cancel: Callable[["ResponseStream"], None],
        *,
        keeps_record: bool = True,
    ) -> None:
        self.request_id = request.request_id
        self.deterministic = request.deterministic
        self.is_structured = request.params.structured is not None
        self.was_accepted = False  # by any engine
        self.queue_seconds: float | None = None  # known once the request left the queue
        self.deltas: deque[Delta] = deque()
        self.scores: tuple[TokenLogprob, ...] = ()  # of the prompt
        self.result: Result | None = None  # without its prompt and its choices
        self.error: Exception | None = None
        self.num_resumes = 0
        self.paused_at: float | None = None  # when its engine process died, until its next output
        self.ids = request.ids
        self.fingerprint: FingerprintReady | None = None  # of the engine that began it, once it is known
        self.replicas: list[str] = []  # of a pool, that accepted it, in order
        self.port: EnginePort | None = None  # of the engine that computes it now
        self.is_accepted = False  # by that engine
        self._request = request
        self._updated = updated
        self._cancel = cancel
        self._keeps_record = keeps_record  # else it cannot be continued
        self._keeps_logprobs = request.want_receipt and not request.deterministic
        self._sent = request.sent or tuple(Sent() for _ in self.ids)

    def deciding(self, fingerprint: FingerprintReady) -> str:
        """Return what of a fingerprint must be equal in an engine that goes on with the answer."""
        return fingerprint.deciding(is_structured=self.is_structured)

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """The logprobs of the prompt, if they were asked for; () until they are there."""
        first = self._request.score_from
        if first is None or len(self.scores) < self._request.num_scored:
            return None if first is None else ()
        return (None, *self.scores) if first == 1 else self.scores

    @property
    def holds_back(self) -> bool:
        """Whether the answers wait for the logprobs of the prompt that is echoed before them."""
        request = self._request
        return request.params.echo and len(self.scores) < request.num_scored and not self.is_over

    @property
    def request(self) -> Request:
        """Return what is sent to an engine: the request, and what the client has of its answer."""
        if self.num_resumes == 0 or not self.was_accepted:
            return self._request
        return replace(self._request, sent=self._sent)

    def cancel(self, error: Exception) -> None:
        """End the request unless it is over; the reader gets this error."""
        if not self.is_over:
            self._cancel(self)
            self.fail(error)

    # Called by the `RequestTable`

    def accept(self) -> None:
        self.is_accepted = self.was_accepted = True
        self._updated.set()

    def start(self, queue_seconds: float) -> None:
        if self.queue_seconds is None:
            self.queue_seconds = queue_seconds

    def pause(self) -> None:
        """Note that the engine died. Another one continues."""
        if self.paused_at is None:
            self.paused_at = time.monotonic()
        self._updated.set()

    def add(self, delta: Delta) -> None:
        if self._keeps_record:
            self._sent[delta.index].add(delta, keeps_logprobs=self._keeps_logprobs)
        self.deltas.append(delta)
        self._updated.set()

    def finish(self, result: Result) -> None:
        self.result = replace(result, prompt_logprobs=self.prompt_logprobs)
        self._updated.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._updated.set()
