"""The loop that steps an engine in one thread.

    any thread      post(command)            one queue of commands
    its thread      run(): commands, step, deliver(outputs), commands, step, ...

The engine process runs it in its main thread, `LLM` and `AsyncLLM` in an `EngineThread`. So an
interrupt (Ctrl-C) never comes in the middle of a step.
"""

import queue
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.core.results import RequestOutput

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

_IDLE_CHECK_SECONDS = 5.0

Command = Callable[[], None]


class EngineLoop:
    """Steps an engine while it has work, and waits for commands while it has none.

    The thread that calls `run` owns the engine from then on. `deliver` gets the outputs of each step.
    """

    def __init__(
        self,
        engine: "Engine",
        deliver: Callable[[Sequence[RequestOutput]], None],
        *,
        only_while_awaited: bool = False,
    ) -> None:
        """only_while_awaited: do not touch the engine while `awaited` is empty, unless `runs_freely`."""
        self.engine = engine
        self.runs_freely = not only_while_awaited
        self.awaited: set[object] = set()
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
        engine = self.engine
        while self._run_commands():
            outputs = engine.step()
            if not self.runs_freely:  # the engine is idle before a caller gets its last output
                while engine.has_work and not engine.has_requests:  # spot checks, and what is in flight
                    outputs += engine.step()
            self._deliver(outputs)

    def _run_commands(self) -> bool:
        """Run commands until the engine may step. False: stop.

        An idle engine that may be touched makes its certificate and captures graphs, if any are left,
        and is checked.
        """
        while True:
            is_awaited = self.runs_freely or bool(self.awaited)
            has_work = is_awaited and self.engine.has_work
            has_rest = is_awaited and self.engine.has_background_work
            seconds = 0 if has_work or has_rest else _IDLE_CHECK_SECONDS if is_awaited else None
            try:
                command = self._commands.get(timeout=seconds)
            except queue.Empty:
                if has_work:
                    return True
                if has_rest:
                    self._deliver(self.engine.work_in_background())
                else:
                    self.engine.check()
            else:
                if command is None:
                    return False
                command()
