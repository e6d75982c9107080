"""Gives memory back to the system after a flood of requests.

glibc keeps freed memory for later; `malloc_trim` returns what is free in whole pages. Elsewhere this
does nothing.
"""

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MIN_GROWTH_BYTES = 32 << 20  # above the least use since the start; below, nothing is done
MAX_PAUSE = 12  # checks, after memory turned out to be in use
_STATM = Path("/proc/self/statm")


class MemoryTrimmer:
    """Checked every few seconds. If a check frees little, the next ones are further apart."""

    def __init__(
        self,
        read_rss: Callable[[], int] | None = None,
        trim: Callable[[], None] | None = None,
    ) -> None:
        self._read_rss = read_rss or resident_bytes
        self._trim = trim or _system_trim()
        self._least = 0
        self._pause = self._num_skipped = 0

    async def check(self, *, is_idle: bool) -> None:
        """Give memory back if the process has grown. An idle server also collects garbage, which
        stops the event loop for some tens of milliseconds.
        """
        rss = self._read_rss()
        self._least = min(self._least or rss, rss)
        if self._trim is None or rss - self._least < MIN_GROWTH_BYTES:
            self._pause = self._num_skipped = 0
            return
        if self._num_skipped < self._pause:
            self._num_skipped += 1
            return
        if is_idle:
            gc.collect()
        await asyncio.to_thread(self._trim)
        freed = rss - self._read_rss()
        self._num_skipped = 0
        self._pause = 0 if freed >= MIN_GROWTH_BYTES else min(2 * self._pause + 1, MAX_PAUSE)


def resident_bytes() -> int:
    """The memory of this process that is in RAM; 0 where the system does not say."""
    with suppress(OSError, ValueError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _system_trim() -> Callable[[], None] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return lambda: malloc_trim(0)
