"""The loop of an engine that serves others: commands come through one inbox, what each step gave goes out at once.

Whoever calls `run` lends it a thread, and from then on that thread owns the engine. Everybody else posts commands, which
run between two steps.
"""

import queue
from collections.abc import Callable, Sequence

from holdfast.engine.engine import Engine, Update

_IDLE_CHECK_SECONDS = 5.0

Command = Callable[[], None]


class EngineThread:
    """Steps an engine while there is work, and waits while there is none."""

    def __init__(self, engine: Engine, deliver: Callable[[Sequence[Update]], None]) -> None:
        self.engine = engine
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def post(self, command: Command) -> None:
        """Run this between two steps. From any thread."""
        self._inbox.put(command)

    def stop(self) -> None:
        """End the loop once what was posted before is done. From any thread."""
        self._inbox.put(None)

    def run(self) -> None:
        """Until stopped. Whatever a command or a broken invariant raises ends it."""
        while self._read_inbox():
            self._deliver(self.engine.step())

    def _read_inbox(self) -> bool:
        """Do what was asked since the last step; wait when there is nothing else to do. False: stop."""
        while True:
            try:
                if self.engine.has_work:
                    command = self._inbox.get_nowait()
                else:
                    command = self._inbox.get(timeout=_IDLE_CHECK_SECONDS)
            except queue.Empty:
                if self.engine.has_work:
                    return True
                self.engine.check()
                continue
            if command is None:
                return False
            command()
