"""Memory that a flood took is given back, without trying all the time while it is in use."""

import asyncio
import sys
from mmap import mmap

import pytest

from holdfast.server.memory import MAX_PAUSE, MIN_GROWTH_BYTES, MemoryTrimmer, resident_bytes

BASE = 100 << 20


class Process:
    """Memory in use and memory that is free but not given back."""

    def __init__(self) -> None:
        self.used, self.free = BASE, 0
        self.num_trims = 0
        self.trimmer = MemoryTrimmer(lambda: self.used + self.free, self._trim)

    def _trim(self) -> None:
        self.num_trims += 1
        self.free = 0

    def check(self, times: int = 1) -> int:
        """The number of trims in this many checks."""
        before = self.num_trims
        for _ in range(times):
            asyncio.run(self.trimmer.check(is_idle=False))
        return self.num_trims - before


def test_memory_is_given_back_after_a_flood() -> None:
    process = Process()
    assert process.check(3) == 0
    process.free = MIN_GROWTH_BYTES - 1
    assert process.check(3) == 0
    process.free = 5 * MIN_GROWTH_BYTES
    assert process.check(3) == 1
    assert process.free == 0


def test_memory_in_use_is_tried_less_and_less_often() -> None:
    process = Process()
    process.check()
    process.used += 10 * MIN_GROWTH_BYTES
    assert process.check(1 + 2 + 4 + 8) == 4
    assert process.check(10 * (MAX_PAUSE + 1)) == 10
    process.used, process.free = BASE, 10 * MIN_GROWTH_BYTES  # the flood ends
    assert process.check(MAX_PAUSE + 1) == 1
    assert process.free == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_is_read() -> None:
    """Mapped memory: an allocation may reuse what an earlier test left."""
    before = resident_bytes()
    with mmap(-1, 64 << 20) as held:
        held[:] = b"x" * len(held)
        assert resident_bytes() - before > 32 << 20
    asyncio.run(MemoryTrimmer().check(is_idle=True))
