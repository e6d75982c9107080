"""One engine process, from start to end, as the frontend sees it."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Sequence

from holdfast.engine.config import EngineConfig
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_connection import EngineCallbacks, EngineConnection, OutputReceiver
from holdfast.server.ipc.live_requests import LiveRequests
from holdfast.server.ipc.pass_record import PassRecord, create_pass_record

__all__ = ["COMMAND", "EngineCallbacks", "EngineLink"]

_log = logging.getLogger("holdfast.server")
_EXIT_SECONDS = 5.0
COMMAND = (sys.executable, "-m", "holdfast.server.ipc.host_main")


class EngineLink(EngineConnection):
    """A running engine process."""

    def __init__(self, callbacks: EngineCallbacks, requests: OutputReceiver) -> None:
        super().__init__(callbacks, requests)
        self._pass_record: PassRecord | None = None

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        callbacks: EngineCallbacks,
        log: tuple[str, str],
        command: Sequence[str] = COMMAND,
        requests: OutputReceiver | None = None,
    ) -> "EngineLink":
        """Start the process and send it the configuration. Does not wait until it is ready.

        log is (format, level). requests get the outputs; those that wait are submitted when the
        process is ready.
        """
        link = cls(callbacks, requests or LiveRequests(resumes=False))
        record = create_pass_record()
        try:
            link._pass_record = PassRecord(record)
            await link._start_process(command, m.Start(config, *log, pass_record=record))
        except BaseException:
            link._close_record()
            raise
        finally:
            os.close(record)
        return link

    async def _start_process(self, command: Sequence[str], start: m.Start) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                inherited = theirs.fileno(), start.pass_record
                self._process = await asyncio.create_subprocess_exec(
                    *command, str(theirs.fileno()), pass_fds=inherited, stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # the process, if it was started, ends with it
            raise
        self._send(start)
        self._read_task = asyncio.create_task(self._read(reader))

    def _close_record(self) -> None:
        if self._pass_record is not None:
            self._pass_record.close()
            self._pass_record = None

    _process: asyncio.subprocess.Process
    _read_task: asyncio.Task[None]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running_ids(self) -> frozenset[int]:
        """The ids of the requests that ran in the last pass."""
        return frozenset() if self._pass_record is None else self._pass_record.running_ids

    @property
    def longest_step(self) -> float:
        """Seconds of the longest step so far."""
        return 0.0 if self._pass_record is None else self._pass_record.longest_step

    async def stop(self) -> None:
        """End the process: ask it to end, then kill it.

        One that is still loading is killed at once.
        """
        if self.ready is None:
            self.kill()
        self._send(m.Stop())
        await self._reap()
        await self.wait_ended()

    def kill(self) -> None:
        """Kill the process."""
        self.is_killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait_ended(self) -> None:
        """Wait until the process has ended and everything it sent was handled."""
        await asyncio.wait((self._read_task,))

    @property
    def exit_status(self) -> str:
        """How the process ended, for the log."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"signal {-code}"

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._read_messages(reader)
        except Exception:
            _log.exception("the engine process sent an invalid message")
            self.kill()
        finally:
            self._writer.close()
            self._on_closed()
            await self._reap()

    async def _reap(self) -> None:
        """Wait for the process to end. Kill it if that takes long: nothing can reach it any more."""
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def _on_closed(self) -> None:
        """Tells everything that waits, even if the process takes time to end."""
        super()._on_closed()
        self._close_record()
