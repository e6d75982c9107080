"""The names of the tasks. Imports nothing else: the command line checks names early."""

from collections.abc import Iterable

from holdfast.errors import ConfigError

TASKS = ("parity", "variables", "coin-talk", "variable-talk", "outside")
FILE_TASKS = ("jsonl", "chat")


def known_tasks() -> str:
    """The names, for messages."""
    return ", ".join((*TASKS, *(f"{kind}:FILE" for kind in FILE_TASKS), "FILE.py:CLASS"))


def require_tasks(names: Iterable[str]) -> None:
    """Refuse names that are no task's."""
    for name in names:
        kind, _, rest = name.rpartition(":") if is_own_task(name) else name.partition(":")
        if name not in TASKS and not ((kind in FILE_TASKS or is_own_task(name)) and rest):
            raise ConfigError(f"there is no task {name!r}; expected {known_tasks()}")


def is_own_task(name: str) -> bool:
    """Return whether the name is a class in a Python file."""
    return name.rpartition(":")[0].endswith(".py")
