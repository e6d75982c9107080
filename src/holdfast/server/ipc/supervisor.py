"""Keeps an engine process running: one that dies is started again, one that cannot be started is given up.

A configuration the engine refuses is refused once and for all. A process that dies again and again within a short time would
not do better the next time either: then the server ends.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.server.errors import ApiError
from holdfast.server.ipc.engine_link import COMMAND, EngineLink, Listener

_log = logging.getLogger("holdfast.server")

MAX_DEATHS = 5
WITHIN_SECONDS = 120.0
FIRST_PAUSE = 0.2
_STUCK_SECONDS = 60.0


class Supervisor:
    """The engine, whichever process it is just now."""

    def __init__(
        self,
        config: EngineConfig,
        listener: Listener,
        log: tuple[str, str] = ("text", "info"),
        command: Sequence[str] = COMMAND,
        *,
        on_ready: Callable[[EngineLink], None] = lambda link: None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self._listener = listener
        self._log_settings = log
        self._command = command
        self._on_ready = on_ready
        self._on_death = on_death
        self._link: EngineLink | None = None
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._stopping = False
        self._watched = False

    @property
    def link(self) -> EngineLink:
        """The engine, able to answer; an `ApiError` of 503 while it is not."""
        link = self._link
        if link is None or link.ready is None or link.gone.is_set() or self._stopping:
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
        return link is not None and link.ready is not None and not link.gone.is_set() and not self._stopping

    @property
    def is_stuck(self) -> bool:
        """Whether the engine has not ended a step for far too long."""
        link = self._link
        return link is not None and link.unanswered_seconds > _STUCK_SECONDS

    def watch(self, on: bool) -> None:
        """Have steps told, also by an engine that is started later."""
        self._watched = on
        if self.is_ready:
            self.link.watch(on)

    async def run(self) -> None:
        """Until stopped. Raises `ConfigError` or `EngineStopped` where going on makes no sense."""
        while not self._stopping:
            try:
                link = self._link = await EngineLink.start(
                    self.config, self._listener, self._log_settings, self._command
                )
            except OSError as error:  # no memory, no descriptors: perhaps later
                await self._mourn(f"could not be started: {error.strerror or error}")
                continue
            await link.settled.wait()
            if link.unfit is not None:
                raise ConfigError(link.unfit)
            if link.ready is not None:
                self._on_ready(link)
                if self._watched:
                    link.watch(True)
            await link.gone.wait()
            await link.ended()
            if not self._stopping:
                await self._mourn(f"died ({link.end})")

    async def stop(self) -> None:
        """End the engine: what it still computes is given up."""
        self._stopping = True
        if self._link is not None:
            await self._link.stop()

    def kill(self) -> None:
        """End the engine without a word."""
        self._stopping = True
        if self._link is not None:
            self._link.kill()

    async def _mourn(self, how: str) -> None:
        """There is no process any more. Wait a little longer each time; too often is too often."""
        now = time.monotonic()
        self._deaths.append(now)
        recent = [death for death in self._deaths if now - death < WITHIN_SECONDS]
        if len(recent) >= MAX_DEATHS:
            raise EngineStopped(
                f"the engine process {how}, the {len(recent)}th time within {WITHIN_SECONDS:.0f} seconds"
            )
        self._on_death()
        pause = FIRST_PAUSE * 2 ** (len(recent) - 1)
        _log.error("the engine process %s; starting it again in %.1f seconds", how, pause)
        await asyncio.sleep(pause)
