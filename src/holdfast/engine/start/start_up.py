"""The phases of building an engine: their seconds, the memory they leave behind, GPUs they fail on."""

import ctypes
import mmap
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from holdfast.numerics.arrays import Device
from holdfast.worker.device import device_name
from holdfast.worker.transfer import DeviceStream

_COMPILER = ("failed to find c compiler", "gcc", "cc1", "cuda.h", "python.h")
_DRIVER = ("no kernel image", "driver version is insufficient", "unsupported toolchain", "ptx version")
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (r-[x-]p) .*\.so[.0-9]*$")


class StartUpClock:
    """Measures phases one after the other. On a GPU the work of a phase is awaited."""

    def __init__(self, device: Device) -> None:
        self.seconds: dict[str, float] = {}  # by phase, in order
        self._device = device
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        if self._device.type == "cuda":
            DeviceStream(self._device).wait()
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


@cache  # once in a process: it takes 15 ms
def release_library_pages() -> None:
    """Unmap the pages of libraries' code and constants that were never written: loading torch touches
    many of them, and computing a few. A page that is used again comes from the system's cache."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    with suppress(OSError, AttributeError):  # no /proc, or another C library
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        for start, size in _clean_library_mappings(Path("/proc/self/smaps").read_text()):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _clean_library_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """(address, bytes) of each read-only mapping of a shared library without a page of its own: relocated
    pages have been written, and exist nowhere else but in memory or in swap space."""
    found: tuple[int, int] | None = None
    for line in smaps.splitlines():
        name, _, value = line.partition(":")
        if name in ("Anonymous", "Swap"):
            if value.split() != ["0", "kB"]:
                found = None
            elif name == "Swap" and found is not None:  # it comes after Anonymous
                yield found
        elif " " in name:  # the first line of a mapping
            start_end = _MAPPING.match(line)
            found = None
            if start_end is not None:
                start = int(start_end[1], 16)
                found = start, int(start_end[2], 16) - start


def explain_kernel_failure(error: BaseException, device: Device) -> str | None:
    """Say what failed and what to do; None if this error does not come from a GPU kernel."""
    if device.type != "cuda":
        return None
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    if any(sign in lowered for sign in _DRIVER):
        advice = "the driver or the GPU is too old for the installed torch and triton: update the driver"
    elif type(error).__module__.startswith("triton") or any(sign in lowered for sign in _COMPILER):
        advice = "a kernel could not be compiled: Triton needs a C compiler (gcc) and a GPU of capability 8.0 or newer"
    elif type(error).__name__ == "AcceleratorError":
        advice = "the GPU failed: restart the process, and look at the driver's log"
    else:
        return None
    first_lines = " ".join(text.split())[:500]
    return f"{device_name(device)} cannot run this engine; {advice}, or use device cpu ({first_lines})"
