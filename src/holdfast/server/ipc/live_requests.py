"""The requests that are not answered yet. They outlive the engine process that computes them.

When a process dies, hangs or a pass in it raises, its requests are submitted again, with what their
clients have been sent: the next process confirms that of deterministic requests bit for bit and goes on.

A request may itself be the reason for a death. Those that ran in the last pass are suspects, as are
those that were being prepared:

    1. A suspect is on trial: it is submitted, and nothing else until it has an output. Then the next
       suspect is, while those before it go on. At last all others are submitted.
    2. If the process dies again while a suspect is on trial, this suspect is tried first after the
       restart: it runs alone.
    3. A request that ran alone at MAX_LONE_DEATHS deaths in a row, without an output of it in between,
       ends with `EngineCrashed`.

A pass that raises makes its requests suspects without a restart. If one of them raises again on
trial, the process is restarted: the device may be broken, and then every pass raises. A request whose
pass raises in a process that has computed nothing else ends with `PassFailed`.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.core.results import RequestOutput, Result
from holdfast.errors import EngineCrashed, EngineStopped, GuaranteeLost, HoldfastError
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.request_table import NO_CALLBACKS, RequestTable, ResumeCallbacks
from holdfast.server.ipc.response_stream import ResponseStream

if TYPE_CHECKING:
    from holdfast.server.ipc.engine_link import EngineLink

__all__ = ["MAX_LONE_DEATHS", "NO_CALLBACKS", "LiveRequests", "ResumeCallbacks"]

_log = logging.getLogger("holdfast.server")

# An operator or the kernel may kill a process by chance while a request is on trial.
MAX_LONE_DEATHS = 3


class LiveRequests(RequestTable):
    """The requests of one engine process at a time."""

    def __init__(
        self,
        *,
        resumes: bool = True,
        callbacks: ResumeCallbacks = NO_CALLBACKS,
    ) -> None:
        super().__init__(resumes=resumes, callbacks=callbacks)
        self._waiting: dict[int, ResponseStream] = {}  # not submitted to the current process
        self._trial: ResponseStream | None = None
        self._blamed: ResponseStream | None = None  # the suspect that is tried first
        self._num_submitted = 0  # to the current process
        self._link: EngineLink | None = None
        self._attached = asyncio.Event()  # there is a link, or none will come any more
        self._fingerprint: m.FingerprintReady | None = None  # the last one

    @property
    def num_waiting(self) -> int:
        """Those that the current engine process does not have yet."""
        return len(self._waiting)

    @property
    def is_on_trial(self) -> bool:
        """Whether a request is tried alone, because it may have killed the engine process."""
        return self._trial is not None

    def _begin(self, stream: ResponseStream) -> None:
        if self._link is not None and not self._waiting and self._trial is None:
            self._link.submit(
                m.Submit(stream.request)
            )  # raises for what cannot be encoded; then there is no stream
            stream.is_submitted = True
            self._num_submitted += 1
        else:
            m.encode([m.Submit(stream.request)])  # raises now, too
            self._waiting[stream.request_id] = stream

    async def wait_for_fingerprint(self) -> m.FingerprintReady:
        """The fingerprint of the engine, or of the last one while it is restarted."""
        while True:
            link = self._link
            if link is None and self._fingerprint is not None:
                return self._fingerprint
            self._require_open()
            if link is None:
                await self._attached.wait()
                continue
            try:
                return await link.wait_for_fingerprint()
            except EngineStopped:
                if not self.resumes:
                    raise

    def close(self, error: HoldfastError) -> None:
        """No engine process will come any more: every request fails with this error."""
        self._attached.set()
        super().close(error)

    def _require_open(self) -> None:
        self._require_no_error()
        if self._link is None and (not self.resumes or self.ready is None):
            raise EngineStopped("the engine is not running")

    def _fail_all(self, error: HoldfastError) -> None:
        self._waiting, self._trial = {}, None
        super()._fail_all(error)

    def _cancel(self, stream: ResponseStream) -> None:
        if self._live.pop(stream.request_id, None) is None:
            return
        self._waiting.pop(stream.request_id, None)
        if stream.is_submitted and self._link is not None:
            self._link.abort(stream.request_id)
        self._end_trial(stream)

    # Called by the link

    def attach(self, link: "EngineLink") -> None:
        """An engine process is ready."""
        if self._error is not None:
            return
        self._link, self.ready, self._num_submitted = link, link.ready, 0
        self._attached.set()
        self._submit_waiting()

    def set_fingerprint(self, fingerprint: m.FingerprintReady) -> None:
        """The current process sent its fingerprint."""
        self._fingerprint = fingerprint
        for stream in self._live.values():
            if stream.is_submitted and stream.fingerprint is None:
                stream.fingerprint = fingerprint
        self._submit_waiting()

    def accept(self, request_id: int) -> None:
        stream = self._live.get(request_id)
        if stream is not None:
            stream.accept()
            if stream.fingerprint is None and self._link is not None:
                stream.fingerprint = self._link.fingerprint

    def refuse(self, request_id: int, error: HoldfastError) -> None:
        stream = self._live.pop(request_id, None)
        if stream is not None:
            stream.fail(error)
            self._end_trial(stream)

    def deliver(self, output: RequestOutput) -> None:
        """What one step gave one request."""
        stream = self._live.get(output.request_id)
        if stream is not None and self._receive(stream, output) and self._trial is stream:
            self._end_trial(stream)

    def detach(self, link: "EngineLink") -> None:
        """The process died; nothing arrives from it any more."""
        if self._link is not link:
            return
        self._link = None
        self._attached.clear()
        if not self.resumes:
            self._fail_all(EngineStopped("the engine stopped"))
            return
        submitted = [stream for stream in self._live.values() if stream.is_submitted]
        running = link.running_ids
        suspects = [
            stream for stream in submitted if not stream.is_accepted or not running.isdisjoint(stream.ids)
        ]
        trial, self._trial = self._trial, None
        for stream in suspects:
            stream.is_suspect = True
        for stream in submitted:
            self._withdraw(stream)
        if trial in suspects:
            self._blame(trial, is_alone=len(suspects) == 1)
        self._waiting = dict(sorted(self._waiting.items()))

    # Suspects

    def _withdraw(self, stream: ResponseStream) -> None:
        """The current process does not compute it any more."""
        stream.is_submitted = stream.is_accepted = False
        stream.num_resumes += 1
        stream.pause()
        self._waiting[stream.request_id] = stream

    def _on_pass_failed(self, stream: ResponseStream, failure: Result) -> None:
        """A pass of this request raised. It is tried again, unless it was alone in its process."""
        stream.last_failure, stream.is_suspect = failure, True
        self._withdraw(stream)
        self._waiting = dict(sorted(self._waiting.items()))
        if self._trial is stream:
            self._trial = None
            if self._num_submitted == 1:
                self._give_up(stream)
            else:
                self._blamed = stream
                if self._link is not None:
                    self._link.kill()
        self._submit_waiting()

    def _blame(self, stream: ResponseStream, *, is_alone: bool) -> None:
        """The process died while this request was on trial."""
        stream.num_lone_deaths += is_alone
        self._blamed = stream
        if stream.num_lone_deaths >= MAX_LONE_DEATHS:
            self._give_up(stream)

    def _give_up(self, stream: ResponseStream) -> None:
        """The engine fails whenever it computes this request."""
        _log.error("request %d is given up: the engine fails whenever it runs", stream.request_id)
        del self._live[stream.request_id]
        del self._waiting[stream.request_id]
        self.has_progressed = True
        self._callbacks.on_crash()
        if stream.last_failure is not None:
            stream.finish(stream.last_failure)
        else:
            stream.fail(
                EngineCrashed(
                    "the engine died whenever it computed this request, also alone; the request was not "
                    "tried again"
                )
            )

    def _end_trial(self, stream: ResponseStream) -> None:
        if self._trial is stream:
            self._trial = None
            self._submit_waiting()

    def _submit_waiting(self) -> None:
        """Submit the next suspect, or all others if there is none."""
        link = self._link
        while link is not None and not link.is_killed and self._waiting and self._trial is None:
            if link.fingerprint is None and any(
                stream.deterministic and stream.fingerprint is not None for stream in self._waiting.values()
            ):
                return  # it says whether they can be continued
            suspects = [stream for stream in self._waiting.values() if stream.is_suspect]
            if not suspects:
                for stream in tuple(self._waiting.values()):
                    self._submit(link, stream)
                return
            self._trial = self._blamed if self._blamed in suspects else suspects[0]
            self._blamed = None
            self._submit(link, self._trial)

    def _submit(self, link: "EngineLink", stream: ResponseStream) -> None:
        """Submit a request that waits, unless its guarantee is lost."""
        del self._waiting[stream.request_id]
        began, new = stream.fingerprint, link.fingerprint
        if (
            stream.deterministic
            and began is not None
            and new is not None
            and stream.deciding(began) != stream.deciding(new)
        ):
            _log.error("request %d cannot continue: the engine has another fingerprint", stream.request_id)
            del self._live[stream.request_id]
            stream.fail(GuaranteeLost("the engine was restarted with another fingerprint"))
            if self._trial is stream:
                self._trial = None
            return
        if stream.num_resumes:
            self._callbacks.on_resume(stream.deterministic)
        stream.is_submitted = True
        self._num_submitted += 1
        link.submit(m.Submit(stream.request))
