"""The tasks that have an eval set. Imports no torch: the command line checks names early."""

from collections.abc import Iterable

from holdfast.errors import ConfigError

TASKS = ("parity", "variables")


def require_eval_tasks(tasks: Iterable[str]) -> None:
    """Refuse tasks without an eval set."""
    unknown = [task for task in tasks if task not in TASKS]
    if unknown:
        raise ConfigError(f"there is no eval set for {unknown[0]!r}; there are {', '.join(TASKS)}")
