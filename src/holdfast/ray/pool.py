"""The replicas of one application, as a frontend uses them: one engine to its routes.

    pool = ReplicaPool(application, server, engine, callbacks)
    await pool.run()                      joins the replicas that Ray knows, until `stop`
    pool.requests.submit(...)             any replica computes it

It stands for its replicas as `EngineProcess` does for one process: `server.main.run(..., connect=...)` takes
what makes it. Every frontend has a pool and a number of its own. Any number of them share the replicas.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from ray.serve.handle import DeploymentHandle

from holdfast.core.request import Request
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.ray.deployment import ENGINE
from holdfast.ray.messages import FRONTEND_BITS, FRONTEND_SHIFT, RoutedRequest, prefix_hashes
from holdfast.ray.replica_port import ReplicaAddress, ReplicaPort
from holdfast.ray.routing_table import RoutingTable, tables
from holdfast.server.config import ServerConfig
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_port import EngineCallbacks, EnginePort
from holdfast.server.ipc.engines import ReplicaStatus, Restart, not_ready
from holdfast.server.ipc.requests import RequestTable
from holdfast.version import __version__

_log = logging.getLogger("holdfast.server")
_POLL_SECONDS = 5.0
_FIRST_RETRY, _MAX_RETRY = 0.05, 1.0
_RETRY_AFTER = 5


@dataclass
class _Member:
    """One replica that Ray runs, or that is drained and still connected."""

    id: str
    address: ReplicaAddress
    port: ReplicaPort | None = None
    is_running: bool = True  # Ray sends it requests
    task: "asyncio.Task[None] | None" = None

    @property
    def state(self) -> str:
        if not self.is_running:
            return "draining"
        port = self.port
        is_open = port is not None and port.ready is not None and not port.closed.is_set()
        return "ready" if is_open else "connecting"


class ReplicaPool:
    """The replicas of one application. fingerprint is the application's; None: that of the first replica."""

    is_stuck = False  # a replica that hangs is restarted by its own `EngineProcess`
    retry_after = _RETRY_AFTER

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
        number = random.SystemRandom().getrandbits(FRONTEND_BITS)
        self._table = RoutingTable(self._on_replicas)
        self.requests = RequestTable(
            resumes=server.resume,
            callbacks=callbacks,
            first_id=(number << FRONTEND_SHIFT) + 1,
            choose=self._choose,
        )
        self._number, self._token = number, secrets.token_hex(8)
        self._application = application
        self._callbacks = callbacks
        self._configured = fingerprint
        self._fingerprint: m.FingerprintReady | None = None  # the application's
        self._generation: str | None = None  # digest of the configuration that the fingerprint came with
        self._members: dict[str, _Member] = {}
        self._handle = handle
        self._stopped = asyncio.Event()
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_tracing = False
        self._was_ready = False

    # What the frontend asks

    @property
    def _ports(self) -> list[ReplicaPort]:
        """Return the ports of the replicas that take requests."""
        return [one.port for one in self._members.values() if one.port is not None and one.state == "ready"]

    @property
    def is_ready(self) -> bool:
        return bool(self._ports) and not self._stopped.is_set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        return [self._status(one) for one in self._members.values()]

    def _status(self, one: _Member) -> ReplicaStatus:
        fingerprint, accepted = self.requests.fingerprint, self.requests.num_accepted
        return ReplicaStatus(
            id=one.id,
            node=one.address.node,
            state=one.state,  # type: ignore[arg-type]
            fingerprint=one.address.fingerprint,
            is_deterministic=fingerprint is not None and one.address.fingerprint == fingerprint.digest,
            num_requests=0 if one.port is None else len(one.port.streams),
            num_accepted_deterministic=accepted[one.id, True],
            num_accepted_ordinary=accepted[one.id, False],
            version=one.address.version,
        )

    def set_tracing(self, on: bool) -> None:
        self._is_tracing = on
        for one in self._members.values():
            if one.port is not None and not one.port.closed.is_set():
                one.port.set_tracing(on)

    async def refresh_status(self) -> None:
        if not self._ports:
            raise not_ready(self.retry_after)
        await asyncio.gather(*(port.status() for port in self._ports), return_exceptions=True)

    # Life

    async def run(self) -> None:
        """Join the application's replicas until stopped."""
        self._loop = asyncio.get_running_loop()
        tables[self._application, ENGINE] = self._table
        handle = self._handle or DeploymentHandle(ENGINE, self._application)  # it need not be deployed yet
        # In this event loop: calls need no other thread, and cancelling one never blocks.
        handle._init(_run_router_in_separate_loop=False)
        self._handle = handle.options(method_name="wait_for_end")
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            while not self._stopped.is_set():
                await asyncio.wait((stopped,), timeout=_POLL_SECONDS)
                for port in self._ports:
                    port.poll()
            if self._failure is not None:
                raise self._failure
        finally:
            stopped.cancel()
            await self._leave(handle)

    def fail(self, error: Exception) -> None:
        """Have `run` raise this: no replica can be had. Any thread may call it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stopped.set()
        self.requests.close(EngineStopped(str(error)))

    async def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._stopped.set()
        self.requests.close(EngineStopped("the engine is shut down"))
        for one in self._members.values():
            if one.task is not None:
                one.task.cancel()
            if one.port is not None:
                one.port.kill()

    async def _leave(self, handle: Any) -> None:
        tables.pop((self._application, ENGINE), None)
        self.kill()
        ports = [one.port for one in self._members.values() if one.port is not None]
        await asyncio.gather(*(port.end_calls() for port in ports))
        await handle.shutdown_async()

    # Requests

    def _choose(self, request: Request, ports: Sequence[EnginePort]) -> EnginePort:
        """Return the port of a replica with the prompt's beginning in its cache, or of the least loaded."""
        loads = {port.id: len(port.streams) for port in ports}
        chosen = self._table.choose(loads, prefix_hashes(request.prompt_ids, request.cache_salt))
        return next(port for port in ports if port.id == chosen)

    async def _call(self, request: RoutedRequest) -> None:
        response = self._handle.remote(request)
        try:
            await response
        except asyncio.CancelledError:
            response.cancel()
            raise

    # Replicas

    def _on_replicas(self, replicas: Sequence[Any]) -> None:
        """Join and leave replicas: Ray's router has another set of them."""
        running = {one.replica_id.unique_id: one.replica_metadata for one in replicas}
        for replica, metadata in running.items():
            if replica not in self._members and metadata:
                self._join(_Member(replica, ReplicaAddress(**metadata)))
        for one in tuple(self._members.values()):
            if one.id not in running and one.is_running:
                one.is_running = False
                _log.info("replica %s takes no more requests", one.id)
        self._update()
        for one in self._members.values():  # their requests move, where another replica may go on with them
            if not one.is_running and one.port is not None:
                self.requests.drain(one.port)

    def _join(self, member: _Member) -> None:
        self._members[member.id] = member
        if member.address.version != __version__:
            problem = (
                f"replica {member.id} on node {member.address.node} runs Holdfast {member.address.version}, this "
                f"frontend {__version__}; it gets no requests. Install the same version on every node"
            )
            _log.error("%s", problem)
            known = {one.address.version for one in self._members.values()}
            if not self._was_ready and __version__ not in known:
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
        """Hold one connection from start to end. Returns whether the replica was ready."""
        port = ReplicaPort(
            member.id, member.address, self._callbacks, self.requests, self._call, self._update
        )
        try:
            await port.connect(self._number, self._token)
        except (OSError, TimeoutError):
            return False
        member.port = port
        await port.settled.wait()
        if port.closed.is_set():
            return False
        self._on_open(member, port)
        await port.closed.wait()
        self._on_closed(member, port)
        return True

    def _on_open(self, member: _Member, port: ReplicaPort) -> None:
        node, fingerprint = member.address.node, port.fingerprint
        assert fingerprint is not None
        _log.info("replica %s on node %s is ready, fingerprint %s", member.id, node, fingerprint.digest)
        if not self._has_fingerprint(port):
            _log.warning(
                "replica %s has the fingerprint %s, the application %s: it serves ordinary requests only",
                member.id, fingerprint.digest, self._wanted_fingerprint,
            )  # fmt: skip
        elif self._fingerprint is not None and fingerprint.llguidance != self._fingerprint.llguidance:
            _log.warning(
                "replica %s has llguidance %s, the application %s: it serves no deterministic structured requests",
                member.id, fingerprint.llguidance, self._fingerprint.llguidance,
            )  # fmt: skip
        if self._is_tracing:
            port.set_tracing(True)
        if not self._was_ready:
            self._was_ready = True
            self._callbacks.on_ready()

    def _on_closed(self, member: _Member, port: ReplicaPort) -> None:
        if self._stopped.is_set():
            return
        if not port.is_stopping:  # Ray may have noticed first that it died
            died = port.died
            how = "lost its connection" if died is None else f"lost its engine process, which {died.how}"
            _log.error("replica %s %s", member.id, how)
            self.num_restarts += 1
            if not self._ports:
                self.restart = Restart(f"of replica {member.id} died", time.monotonic())
            self._callbacks.on_death(how, self.requests.num_live)
        self._update()

    def _update(self) -> None:
        """Tell the requests which replicas take them, and what all can do together."""
        self._choose_fingerprint()
        ports = self._ports
        if ports:
            self.restart = None
        self.requests.set_ports(ports, self._fingerprint, self._sum(ports))
        self._callbacks.on_replicas()

    def _sum(self, ports: Sequence[ReplicaPort]) -> m.Ready | None:
        all_ready = [port.ready for port in ports if port.ready is not None]
        if not all_ready:
            return None
        first = next(
            (port.ready for port in ports if port.ready and self._has_fingerprint(port)), all_ready[0]
        )
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

    def _has_fingerprint(self, port: ReplicaPort) -> bool:
        return port.fingerprint is not None and port.fingerprint.digest == self._wanted_fingerprint

    def _choose_fingerprint(self) -> None:
        """Take the fingerprint of the application's first replica. It changes when the deployment does:
        Ray runs no replica of the old configuration any more, and one of the new is ready."""
        ports = self._ports
        if self._configured is not None:
            ports = [one for one in ports if self._has_fingerprint(one)]
        running = {one.address.config for one in self._members.values() if one.is_running}
        if not ports or (self._fingerprint is not None and (self._configured or self._generation in running)):
            return
        before, self._fingerprint = self._fingerprint, ports[0].fingerprint
        self._generation = ports[0].address.config
        if before is not None and self._fingerprint is not None and before.digest != self._fingerprint.digest:
            _log.warning("the application's fingerprint is %s now", self._fingerprint.digest)
