"""Keeps an engine process running: one that dies is started again.

A configuration that the engine refuses is not tried again. A process that dies too often within a
short time is given up, and the server ends.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.server.errors import ApiError
from holdfast.server.ipc.engine_link import COMMAND, EngineCallbacks, EngineLink

_log = logging.getLogger("holdfast.server")

MAX_DEATHS = 5
WITHIN_SECONDS = 120.0
FIRST_PAUSE = 0.2
_STUCK_SECONDS = 60.0


class Supervisor:
    """Holds the link to the current engine process. log is (format, level) of its log."""

    def __init__(
        self,
        config: EngineConfig,
        callbacks: EngineCallbacks,
        log: tuple[str, str] = ("text", "info"),
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.config = config
        self._callbacks = callbacks
        self._log_settings = log
        self._command = command
        self._link: EngineLink | None = None
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._stopping = False
        self._tracing = False

    @property
    def link(self) -> EngineLink:
        """The link to a ready engine; raises an `ApiError` of 503 while there is none."""
        link = self._link
        if link is None or not self.is_ready:
            raise ApiError(
                503,
                "the engine is not ready yet; ask again",
                code="engine_not_ready",
                headers={"Retry-After": "5"},
            )
        return link

    @property
    def is_ready(self) -> bool:
        link = self._link
        return link is not None and link.ready is not None and not link.closed.is_set() and not self._stopping

    @property
    def is_stuck(self) -> bool:
        """Whether the engine has not finished a step for far too long."""
        link = self._link
        return link is not None and link.unanswered_seconds > _STUCK_SECONDS

    def set_tracing(self, on: bool) -> None:
        """Have steps traced, also by an engine process that is started later."""
        self._tracing = on
        if self.is_ready:
            self.link.set_tracing(on)

    async def run(self) -> None:
        """Run until stopped.

        Raises `ConfigError` or `EngineStopped` if starting again makes no sense.
        """
        while not self._stopping:
            try:
                # Ids continue after a restart: in the log, an id belongs to one request.
                first_id = 1 if self._link is None else self._link.next_id
                link = self._link = await EngineLink.start(
                    self.config, self._callbacks, self._log_settings, self._command, first_id=first_id
                )
            except OSError as error:  # out of memory or descriptors: may work later
                await self._on_engine_death(f"could not be started: {error.strerror or error}")
                continue
            await link.settled.wait()
            if link.startup_error is not None:
                raise ConfigError(link.startup_error)
            if link.ready is not None:
                self._callbacks.on_ready(link)
                if self._tracing:
                    link.set_tracing(True)
            await link.closed.wait()
            await link.wait_ended()
            if not self._stopping:
                await self._on_engine_death(f"died ({link.exit_status})")

    async def stop(self) -> None:
        """End the engine process. Running requests are dropped."""
        self._stopping = True
        if self._link is not None:
            await self._link.stop()

    def kill(self) -> None:
        """Kill the engine process."""
        self._stopping = True
        if self._link is not None:
            self._link.kill()

    async def _on_engine_death(self, how: str) -> None:
        """Wait before the next start, longer each time. Raises if the process died too often."""
        now = time.monotonic()
        self._deaths.append(now)
        recent = [death for death in self._deaths if now - death < WITHIN_SECONDS]
        if len(recent) >= MAX_DEATHS:
            raise EngineStopped(
                f"the engine process {how}, the {len(recent)}th time within {WITHIN_SECONDS:.0f} seconds"
            )
        self._callbacks.on_death()
        pause = FIRST_PAUSE * 2 ** (len(recent) - 1)
        _log.error("the engine process %s; starting it again in %.1f seconds", how, pause)
        await asyncio.sleep(pause)
