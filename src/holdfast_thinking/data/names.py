"""The names of the tasks. Imports nothing else: the command line checks names early."""

from collections.abc import Iterable

from holdfast.errors import ConfigError

PHRASE_TASKS = ("parity", "variables")
TEXT_TASKS = ("coin-talk", "variable-talk", "outside", "entities", "two-hop", "rooms", "room-talk")
FILE_TASKS = ("babi", "gsm8k", "chat")


def known_tasks() -> str:
    """The names, for messages."""
    return ", ".join((*PHRASE_TASKS, *TEXT_TASKS, *(f"{kind}:FILE" for kind in FILE_TASKS)))


def has_events(task: str) -> bool:
    """Whether the texts of a task have a number of events."""
    return task in ("parity", "variables", "coin-talk", "variable-talk", "entities", "rooms", "room-talk")


def require_eval_tasks(tasks: Iterable[str]) -> None:
    """Refuse tasks without an eval set."""
    for task in tasks:
        kind, _, path = task.partition(":")
        if task not in (*PHRASE_TASKS, *TEXT_TASKS) and not (kind in FILE_TASKS and path):
            raise ConfigError(f"there is no eval set for {task!r}; there are {known_tasks()}")
