"""Output to stderr: errors, notes, progress bars. stdout is for answers only.

rich is imported when something is shown.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table


def table(title: str | None, headings: Sequence[str], num_left: int = 1) -> "Table":
    """Return an empty table. The columns after the first `num_left` are for numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="left" if place < num_left else "right")
    return made


def wide_stdout(width: int) -> "Console":
    """Return stdout for tables: of this width where it is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = width
    return console


def stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(message: str) -> None:
    from rich.text import Text

    stderr().print(Text(f"error: {' '.join(message.split())}", style="red"))


def note(message: str) -> None:
    from rich.text import Text

    stderr().print(Text(message, style="dim"))


class StageBars:
    """Progress bars for the stages of loading a model; silent if stderr is no terminal."""

    def __init__(self) -> None:
        self.stages: dict[str, TaskID | None] = {}
        self._progress: Progress | None = None

    def __enter__(self) -> "StageBars":
        if not sys.stderr.isatty():
            return self
        console = stderr()
        if console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description:<16}"),
                BarColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=console, transient=True)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        task = self.stages.setdefault(stage, None)
        if self._progress is None:
            return
        if task is None:
            task = self.stages[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(task, completed=done, total=total)


def require_packages(*packages: str, extra: str, what: str) -> None:
    """Raise `ConfigError` if an optional package is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(f"{what} needs {package}; install it with: pip install 'holdfast[{extra}]'")
