"""The replicas of one application, as a frontend uses them: one engine to its routes.

    pool = ReplicaPool(application, server, engine, callbacks)
    await pool.run()                      joins the replicas that Ray knows, until `stop`
    pool.requests.submit(...)             any replica computes it; see `pooled_requests`

It is an `Engines`, as `Supervisor` is: `holdfast.server.main.run(..., connect=...)` takes what makes it.
Every frontend has a pool and a number of its own, and any number of them share the replicas.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from ray import serve

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.ray.deployment import ENGINE
from holdfast.ray.messages import FRONTEND_BITS, FRONTEND_SHIFT, RoutedRequest
from holdfast.ray.pooled_requests import PooledRequests, ReplicaRequests
from holdfast.ray.replica_link import ReplicaInfo, ReplicaLink
from holdfast.ray.routing_table import RoutingTable, tables
from holdfast.server.config import ServerConfig
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_connection import EngineCallbacks
from holdfast.server.ipc.engines import ReplicaStatus, Restart, not_ready
from holdfast.version import __version__

_log = logging.getLogger("holdfast.server")
_POLL_SECONDS = 5.0
_FIRST_RETRY, _MAX_RETRY = 0.05, 1.0
_RETRY_AFTER = 5


@dataclass
class _Member:
    """One replica that Ray runs, or that is drained and still connected."""

    id: str
    info: ReplicaInfo
    link: ReplicaLink | None = None
    is_running: bool = True  # Ray sends it requests
    task: "asyncio.Task[None] | None" = None
    requests: ReplicaRequests | None = None
    lost: float = field(default=0.0)

    @property
    def is_open(self) -> bool:
        link = self.link
        return (
            link is not None
            and link.ready is not None
            and link.fingerprint is not None
            and not link.closed.is_set()
        )


class ReplicaPool:
    """The replicas of one application. fingerprint is the application's; None: that of the first replica."""

    def __init__(
        self,
        application: str,
        server: ServerConfig,
        engine: EngineConfig,
        callbacks: EngineCallbacks,
        *,
        fingerprint: str | None = None,
        handle: Any = None,
    ) -> None:
        self.num_restarts = 0
        self.restart: Restart | None = None
        self.retry_after = _RETRY_AFTER
        number = random.SystemRandom().getrandbits(FRONTEND_BITS)
        self._table = RoutingTable(self._on_replicas)
        self.requests = PooledRequests(
            self._call,
            self._table,
            resumes=server.resume,
            callbacks=callbacks.resume,
            first_id=(number << FRONTEND_SHIFT) + 1,
        )
        self._number, self._token = number, secrets.token_hex(8)
        self._application = application
        self._callbacks = callbacks
        self._configured = fingerprint
        self._fingerprint: m.FingerprintReady | None = None  # the application's
        self._generation: str | None = None  # digest of the configuration that the fingerprint came with
        self._members: dict[str, _Member] = {}
        self._given_handle = handle
        self._handle: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_tracing = False
        self._was_ready = False

    # What the frontend asks

    @property
    def _open(self) -> list[_Member]:
        """The replicas that take requests."""
        return [one for one in self._members.values() if one.is_open and one.is_running]

    @property
    def is_ready(self) -> bool:
        return bool(self._open) and not self._stopped.is_set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def link(self) -> ReplicaLink:
        links = [one.link for one in self._open if one.link is not None]
        if not links:
            raise not_ready(self.retry_after)
        return next((one for one in links if self._has_fingerprint(one)), links[0])

    @property
    def ready(self) -> m.Ready:
        """The sum of all replicas; while there is none, the last one."""
        ready = self.requests.ready
        if ready is None or self._stopped.is_set() or not (self.is_ready or self.requests.resumes):
            raise not_ready(self.retry_after)
        return ready

    @property
    def is_stuck(self) -> bool:
        """A replica that hangs is restarted by its own supervisor."""
        return False

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        return [self._status(one) for one in self._members.values()]

    def _status(self, one: _Member) -> ReplicaStatus:
        state = "draining" if not one.is_running else "ready" if one.is_open else "connecting"
        return ReplicaStatus(
            id=one.id,
            node=one.info.node,
            state=state,  # type: ignore[arg-type]
            fingerprint=one.info.fingerprint,
            is_deterministic=self.requests.fingerprint is not None
            and one.info.fingerprint == self.requests.fingerprint.digest,
            num_requests=0 if one.requests is None else len(one.requests.streams),
            num_accepted_deterministic=self.requests.num_accepted[one.id, True],
            num_accepted_ordinary=self.requests.num_accepted[one.id, False],
            version=one.info.version,
        )

    def set_tracing(self, on: bool) -> None:
        self._is_tracing = on
        for one in self._members.values():
            if one.is_open and one.link is not None:
                one.link.set_tracing(on)

    async def refresh_status(self) -> None:
        links = [one.link for one in self._open if one.link is not None]
        if not links:
            raise not_ready(self.retry_after)
        await asyncio.gather(*(link.status() for link in links), return_exceptions=True)

    # Life

    async def run(self) -> None:
        """Join the application's replicas until stopped."""
        self._loop = asyncio.get_running_loop()
        tables[self._application, ENGINE] = self._table
        handle = self._given_handle or serve.get_deployment_handle(ENGINE, self._application)
        # In this event loop: calls need no other thread, and cancelling one never blocks.
        handle._init(_run_router_in_separate_loop=False)
        self._handle = handle.options(method_name="wait_for_end")
        try:
            while not self._stopped.is_set():
                await _wait(self._stopped, _POLL_SECONDS)
                for one in self._open:
                    if one.link is not None:
                        one.link.poll()
            if self._failure is not None:
                raise self._failure
        finally:
            await self._leave(handle)

    def fail(self, error: Exception) -> None:
        """No replica can be had: `run` raises this. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stopped.set()
        self.requests.close(EngineStopped(str(error)))

    async def stop(self) -> None:
        self.kill()
        if self._handle is not None:
            await asyncio.sleep(0)

    def kill(self) -> None:
        self._stopped.set()
        self.requests.close(EngineStopped("the engine is shut down"))
        for one in self._members.values():
            if one.task is not None:
                one.task.cancel()
            if one.link is not None:
                one.link.kill()

    async def _leave(self, handle: Any) -> None:
        tables.pop((self._application, ENGINE), None)
        self.kill()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await handle.shutdown_async()

    # Calls

    def _call(self, request: RoutedRequest) -> Any:
        """Start Ray's call of a request that was sent. Returns what cancels it."""
        task = asyncio.create_task(self._run_call(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task.cancel

    async def _run_call(self, request: RoutedRequest) -> None:
        """Call, and wait until the call has ended. The request's end comes over the replica's link."""
        response = None
        try:
            response = self._handle.remote(request)
            await response
        except asyncio.CancelledError:
            if response is not None:
                response.cancel()
            raise
        except Exception as error:
            _log.info(
                "Ray's call of request %d at replica %s failed: %s",
                request.request_id, request.replica, _first_line(error),
            )  # fmt: skip
            self.requests.on_call_failed(request)

    # Replicas

    def _on_replicas(self, replicas: Sequence[Any]) -> None:
        """Ray's router has another set of replicas."""
        running = {one.replica_id.unique_id: one.replica_metadata for one in replicas}
        for replica, metadata in running.items():
            if replica not in self._members and metadata:
                self._join(_Member(replica, ReplicaInfo(**metadata)))
        for one in tuple(self._members.values()):
            if one.id not in running and one.is_running:
                one.is_running = False
                _log.info("replica %s takes no more requests", one.id)
        self._update()
        self._drain()

    def _join(self, member: _Member) -> None:
        self._members[member.id] = member
        if member.info.version != __version__:
            problem = (
                f"replica {member.id} on node {member.info.node} runs Holdfast {member.info.version}, this frontend "
                f"{__version__}; it gets no requests. Install the same version on every node"
            )
            _log.error("%s", problem)
            if not self._was_ready and all(one.info.version != __version__ for one in self._members.values()):
                self._fail(ConfigError(problem))
            return
        member.task = asyncio.create_task(self._keep_connected(member))

    async def _keep_connected(self, member: _Member) -> None:
        """Connect, and again when the connection breaks, until Ray has removed the replica."""
        pause = _FIRST_RETRY
        while member.is_running and not self._stopped.is_set():
            began = time.monotonic()
            if await self._connect(member) and time.monotonic() - began > _MAX_RETRY:
                pause = _FIRST_RETRY
            if member.is_running:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY)
        self._members.pop(member.id, None)
        self._update()

    async def _connect(self, member: _Member) -> bool:
        """One connection from start to end. Returns whether the replica was ready."""
        member.requests = ReplicaRequests(self.requests)
        link = ReplicaLink(member.id, member.info, self._callbacks, member.requests)
        member.requests.link = link
        try:
            await link.connect(self._number, self._token)
        except (OSError, TimeoutError):
            return False
        member.link = link
        await link.settled.wait()
        if link.closed.is_set():
            return False
        await link.wait_for_fingerprint()
        self._on_open(member, link)
        await link.closed.wait()
        self._on_closed(member, link)
        return True

    def _on_open(self, member: _Member, link: ReplicaLink) -> None:
        assert link.fingerprint is not None
        _log.info(
            "replica %s on node %s is ready, fingerprint %s",
            member.id,
            member.info.node,
            link.fingerprint.digest,
        )
        self._update()
        if not self._has_fingerprint(link):
            _log.warning(
                "replica %s has the fingerprint %s, the application %s: it serves ordinary requests only",
                member.id, link.fingerprint.digest, self._wanted_fingerprint,
            )  # fmt: skip
        elif self._fingerprint is not None and link.fingerprint.llguidance != self._fingerprint.llguidance:
            _log.warning(
                "replica %s has llguidance %s, the application %s: it serves no deterministic structured requests",
                member.id, link.fingerprint.llguidance, self._fingerprint.llguidance,
            )  # fmt: skip
        if self._is_tracing:
            link.set_tracing(True)
        if not self._was_ready:
            self._was_ready = True
            self._callbacks.on_ready(link)

    def _on_closed(self, member: _Member, link: ReplicaLink) -> None:
        if self._stopped.is_set():
            return
        if not link.is_stopping:  # Ray may have noticed first that it died
            how = (
                "lost its connection"
                if link.died is None
                else f"lost its engine process, which {link.died.how}"
            )
            _log.error("replica %s %s", member.id, how)
            self.num_restarts += 1
            if not self._open:
                self.restart = Restart(f"of replica {member.id} died", time.monotonic())
            self._callbacks.on_death(how, self.requests.num_live)
        self._update()

    def _update(self) -> None:
        """Tell the requests which replicas take them."""
        self._choose_fingerprint()
        replicas = {one.id: one.requests for one in self._open if one.requests is not None}
        if replicas:
            self.restart = None
        all_ready = [one.link.ready for one in replicas.values() if one.link.ready is not None]
        self.requests.set_replicas(replicas, self._fingerprint, self._sum(all_ready))
        self._callbacks.on_replicas()

    def _sum(self, all_ready: list[m.Ready]) -> m.Ready | None:
        """What all replicas can do together."""
        if not all_ready:
            return None
        first = self.link.ready
        assert first is not None
        refusal = first.refusal
        if self._fingerprint is None:
            refusal = f"no replica has the application's fingerprint {self._configured}"
        return msgspec.structs.replace(
            first,
            max_num_seqs=sum(one.max_num_seqs for one in all_ready),
            max_model_len=min(one.max_model_len for one in all_ready),
            num_kv_positions=min(one.num_kv_positions for one in all_ready),
            refusal=refusal,
        )

    # Fingerprints

    @property
    def _wanted_fingerprint(self) -> str | None:
        return self._configured or (None if self._fingerprint is None else self._fingerprint.digest)

    def _has_fingerprint(self, link: ReplicaLink) -> bool:
        return link.fingerprint is not None and link.fingerprint.digest == self._wanted_fingerprint

    def _choose_fingerprint(self) -> None:
        """The application's fingerprint is that of its first replica. It changes when the deployment does:
        Ray runs no replica of the old configuration any more, and one of the new is ready."""
        links = [one.link for one in self._open if one.link is not None]
        if self._configured is not None:
            links = [one for one in links if self._has_fingerprint(one)]
        running = {one.info.config for one in self._members.values() if one.is_running}
        if not links or (self._fingerprint is not None and (self._configured or self._generation in running)):
            return
        before, self._fingerprint = self._fingerprint, links[0].fingerprint
        self._generation = links[0].info.config
        if before is not None and self._fingerprint is not None and before.digest != self._fingerprint.digest:
            _log.warning("the application's fingerprint is %s now", self._fingerprint.digest)

    def _drain(self) -> None:
        """Move the requests of replicas that Ray removes, where another replica may go on with them."""
        for one in self._members.values():
            if one.is_running or one.requests is None:
                continue
            for stream in tuple(one.requests.streams.values()):
                if self.requests.candidates(stream):
                    self.requests.move(stream)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
