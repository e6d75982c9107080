"""The requests that are not answered yet, whoever computes them. They outlive the engines.

When an engine dies, hangs or a pass in it raises, its requests are submitted again, to the next process
or to another replica, with what their clients have been sent: the engine confirms that of deterministic
requests bit for bit and goes on. `Suspects` says which of them may be the reason for a death.

A deterministic request goes only to an engine with the fingerprint of the application, and one that has
begun only to one with the fingerprint it began with; a structured one needs the same grammar library,
too. While there is none, it waits.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.core.request import Request
from holdfast.core.results import RequestOutput, Result
from holdfast.errors import (
    DeterminismRefused,
    EngineCrashed,
    EngineStopped,
    GuaranteeLost,
    HoldfastError,
    PassFailed,
)
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import NO_CALLBACKS, EngineCallbacks, EnginePort
from holdfast.server.ipc.response_stream import ResponseStream
from holdfast.server.ipc.suspects import Suspects, Verdict

_log = logging.getLogger("holdfast.server")

Choose = Callable[[Request, Sequence[EnginePort]], EnginePort]  # one of the ports that may have a request


def _first(request: Request, ports: Sequence[EnginePort]) -> EnginePort:
    return ports[0]


class RequestTable:
    """All requests of one server.

    Without resumes they fail with the engine that computes them. fingerprint is that of deterministic
    requests which begin now; None while the weights are hashed. ready: what all engines can do; while there
    is none, what the last could. num_accepted: by the port's id, and whether deterministic.
    """

    def __init__(
        self,
        *,
        resumes: bool = True,
        callbacks: EngineCallbacks = NO_CALLBACKS,
        first_id: int = 1,
        choose: Choose = _first,
    ) -> None:
        self.resumes = resumes
        self.ready: m.Ready | None = None
        self.fingerprint: m.FingerprintReady | None = None
        self.has_progressed = False  # an output arrived, or a request was given up, since the last death
        self.num_accepted: Counter[tuple[str, bool]] = Counter()
        self._callbacks = callbacks
        self._next_id = first_id
        self._choose = choose
        self._ports: dict[str, EnginePort] = {}  # those that take requests
        self._live: dict[int, ResponseStream] = {}
        self._waiting: dict[int, ResponseStream] = {}  # no engine has them
        self._suspects = Suspects()
        self._changed = asyncio.Event()  # set for a moment whenever the ports change
        self._error: HoldfastError | None = None
        self._last_digest: str | None = None  # of a fingerprint

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_waiting(self) -> int:
        """Count the requests that no engine has yet."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether requests can be computed, or wait for an engine."""
        return self._error is None and bool(self._ports or (self.resumes and self.ready is not None))

    # For the routes

    def submit(self, updated: asyncio.Event, request: Request) -> ResponseStream:
        """Number a request and send it; one that arrives while no engine is ready waits.

        Its stream says whether it was accepted; `updated` is set whenever something arrives.
        """
        self._require_open()
        request = replace(request, request_id=self._next_id)
        frame = m.encode([m.Submit(request)])  # raises for what cannot be encoded; then there is no stream
        if request.deterministic:
            self._require_determinism()
        stream = ResponseStream(request, updated, self._cancel, keeps_record=self.resumes)
        self._next_id += request.params.n
        self._live[stream.request_id] = stream
        self._place(stream, frame)
        return stream

    async def wait_for_fingerprint(self) -> m.FingerprintReady:
        """Return the fingerprint of deterministic answers; while no engine is ready, the last one."""
        while self.fingerprint is None:
            self._require_open()
            await self._changed.wait()
        return self.fingerprint

    def _require_open(self) -> None:
        """Raise `EngineStopped` if requests can neither be computed nor wait."""
        if not self.is_open:
            raise EngineStopped(str(self._error or "the engine is not running"))

    def _require_determinism(self) -> None:
        """Raise `DeterminismRefused` if all fingerprints are known, and none is the application's."""
        is_known = all(port.fingerprint is not None for port in self._ports.values())
        if self._ports and is_known and self.fingerprint is None:
            assert self.ready is not None
            raise DeterminismRefused(self.ready.refusal or "no replica has the application's fingerprint")

    def _cancel(self, stream: ResponseStream) -> None:
        if stream.request_id in self._live:
            if stream.port is not None:
                stream.port.abort(stream.request_id)
            self._end(stream)

    # For the owner of the ports

    def set_ports(
        self, ports: Iterable[EnginePort], fingerprint: m.FingerprintReady | None, ready: m.Ready | None
    ) -> None:
        """Take note of the engines that take requests from now on, and of what they say of themselves."""
        if self._error is not None:
            return
        self._ports = {port.id: port for port in ports}
        self._note_change(fingerprint)
        self.fingerprint, self.ready = fingerprint, ready or self.ready
        for port in self._ports.values():
            for stream in port.streams.values():
                if stream.is_accepted and stream.fingerprint is None:
                    stream.fingerprint = port.fingerprint
        self._tell_changed()
        self._submit_waiting()

    def _note_change(self, fingerprint: m.FingerprintReady | None) -> None:
        if fingerprint is None:
            return
        before, self._last_digest = self._last_digest, fingerprint.digest
        if before not in (None, fingerprint.digest):
            _log.warning(
                "deterministic answers have another fingerprint from now on: %s, before %s; was the model replaced?",
                fingerprint.digest,
                before,
            )

    def drain(self, port: EnginePort) -> None:
        """Move the requests of a port that takes no more, where another one may go on with them."""
        for stream in tuple(port.streams.values()):
            if self._ports_for(stream):
                port.abort(stream.request_id)
                self._withdraw(stream)
                self._submit_waiting()

    def lose(self, port: EnginePort) -> None:
        """Give the requests of a port that is closed to another one, or have them wait for it."""
        if self._ports.get(port.id) is port:
            del self._ports[port.id]
        self._tell_changed()
        streams = sorted(port.streams.values(), key=lambda one: one.request_id)
        if not self.resumes:
            for stream in streams:
                self._fail(stream, EngineStopped("the engine stopped"))
            return
        killer = self._suspects.on_death(port)
        for stream in streams:
            self._withdraw(stream)
        if killer is not None:
            self._give_up(killer)
        self._submit_waiting()

    def close(self, error: HoldfastError) -> None:
        """Fail every request with this error: no engine will come any more."""
        self._error = error
        streams = self._live
        self._ports, self._live, self._waiting, self._suspects = {}, {}, {}, Suspects()
        self._tell_changed()
        for stream in streams.values():
            if stream.port is not None:
                stream.port.streams.clear()
            stream.fail(error)

    def _tell_changed(self) -> None:
        self._changed.set()
        self._changed.clear()

    # Where a request is computed

    def _place(self, stream: ResponseStream, frame: bytes | None = None) -> None:
        """Submit a request where it may run now. Without such a place it waits."""
        ports = self._ports_for(stream)
        if not ports:
            if self._is_lost(stream):
                _log.error("request %d cannot continue: its fingerprint is gone", stream.request_id)
                self._fail(stream, GuaranteeLost("no engine has the fingerprint that the answer began with"))
            else:
                self._waiting[stream.request_id] = stream
            return
        if stream.num_resumes:
            self._callbacks.on_resume(stream.deterministic)
        failed_at = self._suspects.failed_at(stream)
        request = stream.request
        port = self._choose(request, [one for one in ports if one.id not in failed_at] or ports)
        self._waiting.pop(stream.request_id, None)
        stream.port = port
        port.streams[stream.request_id] = stream
        port.submit(stream.request_id, m.encode([m.Submit(request)]) if frame is None else frame)

    def _ports_for(self, stream: ResponseStream) -> list[EnginePort]:
        return [one for one in self._ports.values() if self._is_free(one) and self._may_run(stream, one)]

    def _is_free(self, port: EnginePort) -> bool:
        if port.is_killed or port.closed.is_set():
            return False
        trial = self._suspects.trial
        if trial is not None and trial.port is port:
            return False
        return port.fingerprint is not None or not any(
            stream.deterministic and stream.fingerprint is not None for stream in self._waiting.values()
        )  # it says whether they can be continued

    def _may_run(self, stream: ResponseStream, port: EnginePort) -> bool:
        """Return whether the port's engine gives the request's bits. A request may begin while it hashes its
        weights."""
        if not stream.deterministic:
            return True
        needed = stream.fingerprint or self.fingerprint
        if needed is None or port.fingerprint is None:
            return needed is None and port.fingerprint is None
        return stream.deciding(needed) == stream.deciding(port.fingerprint)

    def _is_lost(self, stream: ResponseStream) -> bool:
        """Return whether the application has changed since the request began."""
        began, new = stream.fingerprint, self.fingerprint
        if not stream.deterministic or began is None or new is None:
            return False
        return stream.deciding(began) != stream.deciding(new)

    def _submit_waiting(self) -> None:
        """Submit the next suspect, unless one is on trial, and all others that may run."""
        waiting = [self._waiting[one] for one in sorted(self._waiting)]
        if self._suspects.trial is None:
            for stream in self._suspects.in_order(waiting):
                self._place(stream)
                if stream.port is not None:
                    self._suspects.begin_trial(stream)
                    break
        for stream in waiting:
            if stream.request_id in self._waiting and stream not in self._suspects:
                self._place(stream)

    def _withdraw(self, stream: ResponseStream) -> None:
        """Take a request from its engine. It waits for another one."""
        if stream.port is not None:
            del stream.port.streams[stream.request_id]
        self._suspects.leave(stream)
        stream.port, stream.is_accepted = None, False
        stream.num_resumes += 1
        stream.pause()
        self._waiting[stream.request_id] = stream

    # What engines say. A port that has not, or no more, a request says nothing about it.

    def accept(self, port: EnginePort, request_id: int) -> None:
        stream = port.streams.get(request_id)
        if stream is None:
            return
        self.num_accepted[port.id, stream.deterministic] += 1
        if port.id:
            stream.replicas.append(port.id)
        stream.accept()
        stream.fingerprint = stream.fingerprint or port.fingerprint

    def refuse(self, port: EnginePort, request_id: int, error: HoldfastError) -> None:
        stream = port.streams.get(request_id)
        if stream is not None:
            self._fail(stream, error)

    def step(self, port: EnginePort, message: m.StepOutput) -> None:
        """Give the requests what one step of an engine gave them."""
        for started in message.started:
            stream = port.streams.get(started.request_id)
            if stream is not None:
                stream.start(started.queue_seconds)
        for output in message.outputs:
            stream = port.streams.get(output.request_id)
            if stream is not None:
                self._receive(stream, output)

    def _receive(self, stream: ResponseStream, output: RequestOutput) -> None:
        delta, result = output.delta, output.result
        if delta.scores:
            stream.scores = delta.scores
        # A choice that ended in an error may be tried again: its error is in the result.
        if not delta.is_empty and delta.finish_reason != "error":
            stream.add(delta)
        elif result is None:
            return
        if result is not None and result.error_code == PassFailed.code and self.resumes:
            self._on_pass_failed(stream, result)
            return
        self.has_progressed = True
        if stream.paused_at is not None:
            self._callbacks.on_continue(time.monotonic() - stream.paused_at)
            stream.paused_at = None
        if result is not None:
            stream.finish(result)
            self._end(stream)
        elif self._suspects.clear(stream):
            self._submit_waiting()

    def _on_pass_failed(self, stream: ResponseStream, failure: Result) -> None:
        """Try a request again whose pass raised, unless it is to blame."""
        port = stream.port
        assert port is not None
        verdict = self._suspects.on_failed_pass(stream, failure, port)
        self._withdraw(stream)
        if verdict is Verdict.GIVE_UP:
            self._give_up(stream)
        elif verdict is Verdict.RESTART:
            port.kill()
        self._submit_waiting()

    # The end of a request

    def _give_up(self, stream: ResponseStream) -> None:
        """End a request: the engine fails whenever it computes it."""
        _log.error("request %d is given up: the engine fails whenever it runs", stream.request_id)
        self.has_progressed = True
        self._callbacks.on_crash()
        failure = self._suspects.failure(stream)
        if failure is None:
            self._fail(
                stream,
                EngineCrashed(
                    "the engine died whenever it computed this request; the request was not tried again"
                ),
            )
        else:
            stream.finish(failure)
            self._end(stream)

    def _fail(self, stream: ResponseStream, error: HoldfastError) -> None:
        stream.fail(error)
        self._end(stream)

    def _end(self, stream: ResponseStream) -> None:
        del self._live[stream.request_id]
        self._waiting.pop(stream.request_id, None)
        if stream.port is not None:
            del stream.port.streams[stream.request_id]
            stream.port = None
        if self._suspects.clear(stream):
            self._submit_waiting()
