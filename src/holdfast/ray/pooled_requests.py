"""The requests of a frontend whose engines are replicas. They outlive the replica that computes them.

A replica that is lost or drained leaves its requests to the others, with what their clients have been
sent: the next replica confirms that of deterministic requests bit for bit and goes on.

A deterministic request goes only to replicas with the application's fingerprint, and one that has begun
only to replicas with the fingerprint it began with; a structured one only to those with the same grammar
library. While there is none, it waits.

A request is sent over the connection to its replica at once. Ray's call of it, which Ray counts, is made
beside that.

A request may itself be the reason for a death. Those in the last pass of an engine process that died are
suspects, as are those that lost two replicas without an output in between. Suspects are tried one after
the other, each until it has an output, while all other requests go on. One whose replica is lost
MAX_LONE_DEATHS times on trial ends with `EngineCrashed`; one whose pass raises at two replicas with
`PassFailed`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from holdfast.core.results import RequestOutput, Result
from holdfast.errors import DeterminismRefused, EngineCrashed, EngineStopped, GuaranteeLost, HoldfastError
from holdfast.ray.messages import RoutedRequest, prefix_hashes
from holdfast.ray.replica_link import ReplicaLink
from holdfast.ray.routing_table import RoutingTable
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.live_requests import MAX_LONE_DEATHS
from holdfast.server.ipc.request_table import NO_CALLBACKS, RequestTable, ResumeCallbacks
from holdfast.server.ipc.response_stream import ResponseStream

_log = logging.getLogger("holdfast.server")
_MAX_FAILED_REPLICAS = 2

MakeCall = Callable[[RoutedRequest], Callable[[], None]]  # starts Ray's call; returns what cancels it


class PooledRequests(RequestTable):
    """All requests of one frontend. The table chooses their replicas."""

    def __init__(
        self,
        call: MakeCall,
        table: RoutingTable,
        *,
        resumes: bool = True,
        callbacks: ResumeCallbacks = NO_CALLBACKS,
        first_id: int = 1,
    ) -> None:
        super().__init__(resumes=resumes, callbacks=callbacks, first_id=first_id)
        self.replicas: dict[str, ReplicaRequests] = {}  # those that take new requests
        self.num_accepted: Counter[tuple[str, bool]] = Counter()  # by replica, and whether deterministic
        self._call = call
        self._table = table
        self._computed_by: dict[int, ReplicaRequests] = {}
        self._calls: dict[int, tuple[RoutedRequest, Callable[[], None]]] = {}
        self._failed_at: dict[int, frozenset[str]] = {}  # replicas where a pass of it raised
        self._waiting: dict[int, ResponseStream] = {}  # no replica has the fingerprint they need
        self._suspects: dict[int, ResponseStream] = {}  # they wait for their trial
        self._trial: ResponseStream | None = None
        self._fingerprint: m.FingerprintReady | None = None
        self._changed = asyncio.Event()  # the fingerprint is known, or never will be

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._suspects)

    @property
    def fingerprint(self) -> m.FingerprintReady | None:
        """The application's: deterministic requests that begin go to replicas that have it."""
        return self._fingerprint

    async def wait_for_fingerprint(self) -> m.FingerprintReady:
        """The application's fingerprint."""
        while self._fingerprint is None:
            self._require_open()
            await self._changed.wait()
        return self._fingerprint

    def set_replicas(
        self,
        replicas: dict[str, "ReplicaRequests"],
        fingerprint: m.FingerprintReady | None,
        ready: m.Ready | None,
    ) -> None:
        """The replicas that take requests now, the application's fingerprint, and what all can do."""
        if self._error is not None:
            return
        self.replicas, self._fingerprint = replicas, fingerprint
        self.ready = ready or self.ready
        if fingerprint is not None:
            self._changed.set()
        waiting, self._waiting = self._waiting, {}
        for stream in waiting.values():
            self._send(stream)

    def close(self, error: HoldfastError) -> None:
        """No replica will come any more: every request fails with this error."""
        self._changed.set()
        self._waiting, self._suspects, self._trial = {}, {}, None
        for request_id in tuple(self._calls):
            self._cancel_call(request_id)
        super().close(error)

    def _begin(self, stream: ResponseStream) -> None:
        if stream.deterministic and self.replicas and self._fingerprint is None and self.ready is not None:
            raise DeterminismRefused(self.ready.refusal or "no replica has the application's fingerprint")
        self._send(stream)

    def _require_open(self) -> None:
        self._require_no_error()
        if not self.replicas and (not self.resumes or self.ready is None):
            raise EngineStopped("the engine is not running")

    def _cancel(self, stream: ResponseStream) -> None:
        if self._live.pop(stream.request_id, None) is None:
            return
        self._waiting.pop(stream.request_id, None)
        self._suspects.pop(stream.request_id, None)
        self._leave_replica(stream)
        self._forget(stream)

    # Routing

    def candidates(self, stream: ResponseStream) -> "list[ReplicaRequests]":
        """The replicas that may compute the request now."""
        needed = self._needed(stream)
        return [
            one
            for one in self.replicas.values()
            if not one.link.closed.is_set()
            and one.link.fingerprint is not None
            and (needed is None or stream.deciding(one.link.fingerprint) == needed)
        ]

    def _needed(self, stream: ResponseStream) -> str | None:
        """What a replica's fingerprint must say; None: anything. Empty if it is not known yet."""
        if not stream.deterministic:
            return None
        fingerprint = stream.fingerprint or self._fingerprint
        return "" if fingerprint is None else stream.deciding(fingerprint)

    def _send(self, stream: ResponseStream) -> None:
        """Have a replica compute the request, or let it wait for one. Raises for what cannot be encoded."""
        frame = m.encode([m.Submit(stream.request)])
        candidates = self.candidates(stream)
        if not candidates:
            if self._is_lost(stream):
                self._fail(stream, GuaranteeLost("no replica has the fingerprint that the answer began with"))
                return
            self._waiting[stream.request_id] = stream
            return
        if stream.num_resumes:
            self._callbacks.on_resume(stream.deterministic)
        at = self._choose(stream, candidates)
        self._computed_by[stream.request_id] = at
        number = at.submit(stream, frame)
        request = RoutedRequest(stream.request_id, at.link.connection, number, at.link.replica)
        self._calls[stream.request_id] = request, self._call(request)
        stream.is_submitted = True

    def _choose(self, stream: ResponseStream, candidates: "list[ReplicaRequests]") -> "ReplicaRequests":
        """The replica for a request. One at which it failed only if there is no other."""
        failed = self._failed_at.get(stream.request_id, frozenset())
        preferred = [one for one in candidates if one.link.replica not in failed] or candidates
        by_id = {one.link.replica: one for one in preferred}
        request = stream.request
        loads = {replica: len(one.streams) for replica, one in by_id.items()}
        return by_id[self._table.choose(loads, prefix_hashes(request.prompt_ids, request.cache_salt))]

    def _is_lost(self, stream: ResponseStream) -> bool:
        """Whether the application has changed since the request began, and its replicas are gone."""
        needed = self._needed(stream)
        return bool(needed) and self._fingerprint is not None and needed != stream.deciding(self._fingerprint)

    def on_call_failed(self, request: RoutedRequest) -> None:
        """Ray lost the replica that had taken a call: its connection may be open and dead."""
        call = self._calls.get(request.request_id)
        at = self._computed_by.get(request.request_id)
        if call is not None and call[0] is request and request.is_routed and at is not None:
            at.link.kill()

    def _cancel_call(self, request_id: int) -> None:
        call = self._calls.pop(request_id, None)
        if call is not None:
            call[1]()

    def _leave_replica(self, stream: ResponseStream) -> None:
        """No replica computes the request any more."""
        at = self._computed_by.pop(stream.request_id, None)
        if at is not None:
            del at.streams[stream.request_id]
            if not at.link.closed.is_set():
                at.link.abort(stream.request_id)
        self._cancel_call(stream.request_id)
        stream.is_submitted = stream.is_accepted = False

    # Lost replicas

    def lose(self, stream: ResponseStream, *, is_suspect: bool = False) -> None:
        """The replica that computed the request is gone. Another one goes on."""
        self._leave_replica(stream)
        if not self.resumes:
            self._fail(stream, EngineStopped("the engine stopped"))
            return
        stream.num_losses += 1
        if is_suspect or stream.num_losses > 1:
            stream.is_suspect = True
        if self._trial is stream:
            self._trial = None
            stream.num_lone_deaths += 1
            if stream.num_lone_deaths >= MAX_LONE_DEATHS:
                self._give_up(stream)
                return
        self._resume(stream)

    def move(self, stream: ResponseStream) -> None:
        """The replica that computes the request is drained. Another one goes on."""
        self._leave_replica(stream)
        self._resume(stream)

    def _resume(self, stream: ResponseStream) -> None:
        stream.num_resumes += 1
        stream.pause()
        if stream.is_suspect:
            self._suspects[stream.request_id] = stream
            self._try_next()
        else:
            self._send(stream)

    def _try_next(self) -> None:
        """Submit the next suspect, unless one is on trial."""
        while self._trial is None and self._suspects:
            stream = self._suspects.pop(next(iter(self._suspects)))
            self._trial = stream
            self._send(stream)

    def _on_pass_failed(self, stream: ResponseStream, failure: Result) -> None:
        """A pass of this request raised. It is tried once more, at another replica if there is one."""
        at = self._computed_by.get(stream.request_id)
        failed = self._failed_at.get(stream.request_id, frozenset())
        stream.last_failure, stream.is_suspect = failure, True
        self._leave_replica(stream)
        if self._trial is stream:
            self._trial = None
        if len(failed) + 1 >= _MAX_FAILED_REPLICAS:
            self._give_up(stream)
            return
        self._failed_at[stream.request_id] = failed | {"" if at is None else at.link.replica}
        self._resume(stream)

    def _give_up(self, stream: ResponseStream) -> None:
        """The engine fails whenever it computes this request."""
        _log.error("request %d is given up: the engine fails whenever it runs", stream.request_id)
        self._callbacks.on_crash()
        if stream.last_failure is not None:
            self._live.pop(stream.request_id, None)
            stream.finish(stream.last_failure)
            self._forget(stream)
        else:
            self._fail(
                stream,
                EngineCrashed("a replica was lost whenever it computed this request; it was not tried again"),
            )

    def _fail(self, stream: ResponseStream, error: HoldfastError) -> None:
        self._live.pop(stream.request_id, None)
        stream.fail(error)
        self._forget(stream)

    def _forget(self, stream: ResponseStream) -> None:
        """The request is over."""
        self._failed_at.pop(stream.request_id, None)
        if self._trial is stream:
            self._trial = None
        self._try_next()

    # What replicas say

    def deliver(self, output: RequestOutput) -> None:
        stream = self._live.get(output.request_id)
        if stream is None or not self._receive(stream, output):
            return
        stream.num_losses = 0
        if stream.is_over:
            self._end(stream)
        elif self._trial is stream:
            self._trial = None
            self._try_next()

    def _end(self, stream: ResponseStream) -> None:
        """The answer is complete. Its call ends by itself."""
        at = self._computed_by.pop(stream.request_id, None)
        if at is not None:
            at.streams.pop(stream.request_id, None)
        self._calls.pop(stream.request_id, None)
        self._forget(stream)

    def accept(self, at: "ReplicaRequests", request_id: int) -> None:
        """A replica has begun a request."""
        stream = at.streams.get(request_id)
        if stream is None:
            return  # it was cancelled or moved
        self.num_accepted[at.link.replica, stream.deterministic] += 1
        stream.replicas.append(at.link.replica)
        stream.accept()
        stream.fingerprint = stream.fingerprint or at.link.fingerprint

    def refuse(self, at: "ReplicaRequests", request_id: int, error: HoldfastError) -> None:
        stream = at.streams.get(request_id)
        if stream is not None:
            self._end(stream)
            self._fail(stream, error)

    def on_link_closed(self, at: "ReplicaRequests") -> None:
        """A replica is gone, or its engine process died."""
        link, running = at.link, at.link.running_ids
        for stream in tuple(at.streams.values()):
            is_suspect = link.died is not None and (
                not stream.is_accepted or not running.isdisjoint(stream.ids)
            )
            self.lose(stream, is_suspect=is_suspect)


class ReplicaRequests:
    """The requests that were sent to one replica on one connection."""

    link: ReplicaLink

    def __init__(self, table: PooledRequests) -> None:
        self.streams: dict[int, ResponseStream] = {}
        self._table = table
        self._num_submitted = 0

    def submit(self, stream: ResponseStream, frame: bytes) -> int:
        """Send a request, which is encoded. Returns how many were sent on this connection."""
        self.streams[stream.request_id] = stream
        self._num_submitted += 1
        self.link.forward(frame)
        return self._num_submitted

    def attach(self, link: ReplicaLink) -> None:
        pass  # the pool waits for it

    def set_fingerprint(self, fingerprint: m.FingerprintReady) -> None:
        pass  # the pool waits for it

    def accept(self, request_id: int) -> None:
        self._table.accept(self, request_id)

    def refuse(self, request_id: int, error: HoldfastError) -> None:
        self._table.refuse(self, request_id, error)

    def step(self, message: m.StepOutput) -> None:
        for started in message.started:
            if started.request_id in self.streams:
                self._table.start(started.request_id, started.queue_seconds)
        for output in message.outputs:
            if output.request_id in self.streams:  # else it was cancelled or moved
                self._table.deliver(output)

    def detach(self, link: ReplicaLink) -> None:
        self._table.on_link_closed(self)
