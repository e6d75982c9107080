"""The loop that steps an engine in one thread.

Other threads post commands, which run between two steps.
"""

import queue
from collections.abc import Callable, Sequence

from holdfast.core.results import RequestOutput
from holdfast.engine.engine import Engine

_IDLE_CHECK_SECONDS = 5.0

Command = Callable[[], None]


class EngineThread:
    """Steps an engine while it has work, and waits for commands while it has none. An idle engine
    makes its certificate, if it has none yet.

    The thread that calls `run` owns the engine from then on. `deliver` gets the outputs of each
    step.
    """

    def __init__(self, engine: Engine, deliver: Callable[[Sequence[RequestOutput]], None]) -> None:
        self.engine = engine
        self._deliver = deliver
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def post(self, command: Command) -> None:
        """Run a command between two steps. Any thread may call it."""
        self._commands.put(command)

    def stop(self) -> None:
        """End the loop after the commands posted so far. Any thread may call it."""
        self._commands.put(None)

    def run(self) -> None:
        """Run until stopped. An exception in a command or a broken invariant ends it."""
        while self._run_commands():
            self._deliver(self.engine.step())

    def _run_commands(self) -> bool:
        """Run the commands posted since the last step; wait for one while the engine is idle.

        False: stop.
        """
        while True:
            try:
                if self.engine.has_work or self.engine.has_background_work:
                    command = self._commands.get_nowait()
                else:
                    command = self._commands.get(timeout=_IDLE_CHECK_SECONDS)
            except queue.Empty:
                if self.engine.has_work:
                    return True
                if self.engine.has_background_work:
                    self._deliver(self.engine.work_in_background())
                else:
                    self.engine.check()
                continue
            if command is None:
                return False
            command()
