"""A progress bar on stderr for the stages of loading a model; silent where stderr is no terminal."""

from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.cli.show import stderr

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class StageBars:
    """One bar a stage, gone when the work is done. Call it with (stage, done, in all)."""

    def __init__(self) -> None:
        self.stages: dict[str, TaskID | None] = {}
        self._progress: Progress | None = None

    def __enter__(self) -> "StageBars":
        console = stderr()
        if console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description:<16}"), BarColumn(), TimeElapsedColumn())
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
