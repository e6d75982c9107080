"""A server whose engine can be given faults while it serves."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from support.serving import Server, serving


class FaultyServer:
    """A server, and the file from which its engine reads its faults before each step."""

    def __init__(self, server: Server, control: Path) -> None:
        self.server = server
        self._control = control
        self._settings: dict[str, Any] = {}
        self._number = 0

    def set_faults(self, **settings: Any) -> None:
        """They hold from the engine's next step on."""
        self._settings = settings
        new = self._control.with_suffix(".new")
        new.write_text(json.dumps(settings))
        new.replace(self._control)

    def fail_once(self, fault: str) -> None:
        """The next pass fails, and only that one."""
        self._number += 1
        self.set_faults(**{**self._settings, "raise_once": self._number, "fault": fault})


@contextmanager
def faulty_server(model: Path, folder: Path, *options: str) -> Iterator[FaultyServer]:
    control = folder / "control"
    control.write_text("{}")
    settings = {"control": str(control)}
    with serving(model, *options, engine="faulty_engine.py", engine_settings=settings) as server:
        yield FaultyServer(server, control)


def engine_of(server: Server) -> int | None:
    """The current engine process, if there is one."""
    with suppress(AssertionError, psutil.Error):
        return server.engine_pid
    return None
