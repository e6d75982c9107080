"""The phases of building an engine, with their seconds, and the memory that they leave behind."""

import ctypes
import sys
import time
from contextlib import suppress

import torch


class StartUpClock:
    """Measures phases one after the other. On a GPU the work of a phase is awaited."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}  # by phase, in order
        self._device = device
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        """This phase has ended now."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in self.seconds.items())
        return f"{sum(self.seconds.values()):.2f} s ({phases})"


def release_free_memory() -> None:
    """Give freed memory back to the system. glibc would keep what the checks before loading needed."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
