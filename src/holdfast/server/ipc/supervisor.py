"""Keeps an engine process running: one that dies or hangs is started again, and its requests with it.

    starting -> ready -> restarting -> ready -> ...

A process hangs if its loop answers nothing for `hang_timeout` seconds and for 20 times its longest
step. It is killed. A configuration that the engine refuses is not tried again. A process that dies too
often within a short time, while no request gets an output, is given up, and the server ends.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped, HoldfastError
from holdfast.server.errors import ApiError
from holdfast.server.ipc.engine_connection import OutputReceiver
from holdfast.server.ipc.engine_link import COMMAND, EngineCallbacks, EngineLink
from holdfast.server.ipc.engines import ReplicaStatus, Restart, not_ready
from holdfast.server.ipc.messages import Ready

_log = logging.getLogger("holdfast.server")

MAX_DEATHS = 5
WITHIN_SECONDS = 120.0
FIRST_PAUSE = 0.2
STEPS_UNTIL_HANG = 20  # times the longest step
_LOADS_UNTIL_HANG = 20  # times the longest load
_POLL_SECONDS = 5.0
_RETRY_SECONDS = 5  # while the model is loaded for the first time


class ProcessRequests(OutputReceiver, Protocol):
    """The requests of the engine process, as its supervisor sees them."""

    resumes: bool
    ready: Ready | None
    has_progressed: bool

    @property
    def num_live(self) -> int: ...

    def close(self, error: HoldfastError, /) -> None: ...


Requests = TypeVar("Requests", bound=ProcessRequests)


class Supervisor(Generic[Requests]):
    """Holds the link to the current engine process, and the requests that it computes.

    log is (format, level) of its log. hang_timeout 0: a process that hangs is not killed.
    """

    replicas: Sequence[ReplicaStatus] = ()

    def __init__(
        self,
        config: EngineConfig,
        callbacks: EngineCallbacks,
        log: tuple[str, str] = ("text", "info"),
        command: Sequence[str] = COMMAND,
        *,
        requests: Requests,
        hang_timeout: float = 60.0,
    ) -> None:
        self.config = config
        self.requests = requests
        self._restart: Restart | None = None
        self.num_restarts = 0
        self.load_seconds: float | None = None  # of the last start
        self._callbacks = callbacks
        self._log_settings = log
        self._command = command
        self._hang_timeout = hang_timeout
        self._link: EngineLink | None = None
        self._started = 0.0
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._hung = False  # why the current process is killed
        self._stopping = False
        self._tracing = False

    @property
    def link(self) -> EngineLink:
        """The link to a ready engine; raises an `ApiError` of 503 while there is none."""
        link = self._link
        if link is None or not self.is_ready:
            raise self._not_ready()
        return link

    @property
    def ready(self) -> Ready:
        """What the last engine process said when it was ready. Raises an `ApiError` of 503 if requests
        can neither be computed nor wait for a restart."""
        ready = self.requests.ready
        if ready is None or self._stopping or not (self.is_ready or self.requests.resumes):
            raise self._not_ready()
        return self.link.ready or ready if self.is_ready else ready

    def _not_ready(self) -> ApiError:
        return not_ready(self.retry_after)

    @property
    def is_ready(self) -> bool:
        link = self._link
        return link is not None and link.ready is not None and not link.closed.is_set() and not self._stopping

    @property
    def restart(self) -> Restart | None:
        """The restart in progress. It begins when the process is gone, also before its exit status is
        known."""
        link = self._link
        if self._restart is None and link is not None and link.ready is not None and link.closed.is_set():
            return Restart("ended", time.monotonic())
        return self._restart

    @property
    def is_stuck(self) -> bool:
        """Whether the engine has not finished a step for far too long."""
        link = self._link
        return link is not None and link.unanswered_seconds > self._step_limit(link)

    @property
    def retry_after(self) -> int:
        """Estimated seconds until the process is ready, by the time that the last start took."""
        if self.load_seconds is None:
            return _RETRY_SECONDS
        is_loading = self._link is not None and not self._link.closed.is_set()
        elapsed = (
            time.monotonic() - self._started if is_loading else 0.0
        )  # else the last process died just now
        return max(1, math.ceil(self.load_seconds - elapsed))

    def set_tracing(self, on: bool) -> None:
        """Have steps traced, also by an engine process that is started later."""
        self._tracing = on
        if self.is_ready:
            self.link.set_tracing(on)

    async def refresh_status(self) -> None:
        """Request the engine's numbers; the callback gets them."""
        await self.link.status()

    async def run(self) -> None:
        """Run until stopped.

        Raises `ConfigError` or `EngineStopped` if starting again makes no sense.
        """
        watching = asyncio.create_task(self._watch())
        try:
            while not self._stopping:
                await self._run_process()
        except (ConfigError, EngineStopped) as error:
            self.requests.close(error)
            raise
        finally:
            watching.cancel()

    async def _run_process(self) -> None:
        """Start one process and wait until it has ended."""
        self._started, self._hung = time.monotonic(), False
        try:
            link = self._link = await EngineLink.start(
                self.config, self._callbacks, self._log_settings, self._command, self.requests
            )
        except OSError as error:  # out of memory or descriptors: may work later
            await self._on_engine_death(f"could not be started: {error.strerror or error}")
            return
        await link.settled.wait()
        if link.startup_error is not None:
            raise ConfigError(link.startup_error)
        if link.ready is not None:
            self.load_seconds = time.monotonic() - self._started
            self._restart = None
            self._callbacks.on_ready(link)
            if self._tracing:
                link.set_tracing(True)
        await link.closed.wait()
        await link.wait_ended()
        if not self._stopping:
            await self._on_engine_death("hung and was killed" if self._hung else f"died ({link.exit_status})")

    async def stop(self) -> None:
        """End the engine process. Running requests are dropped."""
        self._stopping = True
        self.requests.close(EngineStopped("the engine is shut down"))
        if self._link is not None:
            await self._link.stop()

    def kill(self) -> None:
        """Kill the engine process."""
        self._stopping = True
        self.requests.close(EngineStopped("the engine is shut down"))
        if self._link is not None:
            self._link.kill()

    async def _watch(self) -> None:
        """Request the engine's status every few seconds, and kill a process that does not answer."""
        interval = min(_POLL_SECONDS, self._hang_timeout / 4 or _POLL_SECONDS)
        while True:
            await asyncio.sleep(interval)
            link = self._link
            if link is None or link.closed.is_set() or link.is_killed:
                continue
            if link.ready is not None:
                link.poll()
            if self._hang_timeout and self._is_hanging(link):
                _log.error("the engine process hangs; it is killed")
                self._hung = True
                self._callbacks.on_hang()
                link.kill()

    def _is_hanging(self, link: EngineLink) -> bool:
        if link.ready is not None:
            return link.unanswered_seconds > self._step_limit(link)
        if self.load_seconds is None:
            return False  # nobody knows how long the first load takes
        limit = max(self._hang_timeout, _LOADS_UNTIL_HANG * self.load_seconds)
        return time.monotonic() - self._started > limit

    def _step_limit(self, link: EngineLink) -> float:
        return max(self._hang_timeout or 60.0, STEPS_UNTIL_HANG * link.longest_step)

    async def _on_engine_death(self, how: str) -> None:
        """Wait before the next start, longer each time. Raises if the process died too often."""
        now = time.monotonic()
        if self.requests.has_progressed:
            self._deaths.clear()
            self.requests.has_progressed = False
        self._deaths.append(now)
        recent = [death for death in self._deaths if now - death < WITHIN_SECONDS]
        if len(recent) >= MAX_DEATHS:
            raise EngineStopped(
                f"the engine process {how}, the {len(recent)}th time within {WITHIN_SECONDS:.0f} seconds"
            )
        self._restart = Restart(how, now)
        self.num_restarts += 1
        self._callbacks.on_death(how, self.requests.num_live)
        pause = FIRST_PAUSE * (2 ** (len(recent) - 1) - 1)
        _log.error(
            "the engine process %s; %d requests wait; starting it again in %.1f seconds",
            how,
            self.requests.num_live,
            pause,
        )
        await asyncio.sleep(pause)
