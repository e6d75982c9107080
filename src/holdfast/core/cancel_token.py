"""Tells work in another thread that its result is not needed any more.

token.check()                    between two slices of work: raises `Cancelled`
with token.on_cancel(kill): ...  around a wait: calls kill from the thread that cancels
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

_SLICE_LEN = 4096
T = TypeVar("T")


class Cancelled(Exception):
    """The work was given up: nobody waits for its result."""


class CancelToken:
    """Cancelled once, for good. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Cancel the work and call what its thread has registered."""
        with self._lock:
            if self._is_cancelled:
                return
            self._is_cancelled = True
            for callback in self._callbacks:
                callback()

    def check(self) -> None:
        if self._is_cancelled:
            raise Cancelled

    @contextmanager
    def on_cancel(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call it if the work is cancelled inside the block or was before, never after the block.

        The callback must not wait for the thread of the block.
        """
        with self._lock:
            if self._is_cancelled:
                callback()
                raise Cancelled
            self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


def in_slices(items: Sequence[T], token: CancelToken | None) -> Iterator[Sequence[T]]:
    """Yield the items, some thousands at a time. Raise `Cancelled` before the next slice."""
    for start in range(0, len(items), _SLICE_LEN):
        if token is not None:
            token.check()
        yield items[start : start + _SLICE_LEN]
