"""Memory that the engine process shares with the frontend: which requests run, and the longest step.

The engine writes it before each pass. The frontend reads it after the process died or hung, when no
message can be expected any more.

    +-------------------+--------------------+--------------------------+
    | longest step (f8) | number of ids (u8) | ids of running requests  |
    +-------------------+--------------------+--------------------------+
"""

import mmap
import os
import struct
import sys
import tempfile
from array import array
from collections.abc import Iterable

_MAX_IDS = 8192
_LONGEST = struct.Struct("<d")
_COUNT = struct.Struct("<Q")
_HEAD = _LONGEST.size + _COUNT.size
_SIZE = _HEAD + 8 * _MAX_IDS


def create_pass_record() -> int:
    """Make such memory, empty. Returns its file descriptor."""
    if sys.platform == "linux":
        # Not a file: a write to a page that a full disk has no room for would kill the process.
        descriptor = os.memfd_create("holdfast-pass-record")
    else:
        with tempfile.TemporaryFile(prefix="holdfast-", buffering=0) as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor


class PassRecord:
    """The memory behind a file descriptor, which the caller may close."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SIZE)

    def write_running(self, request_ids: Iterable[int]) -> None:
        """Note that these requests run from now on. A process that dies in here leaves none."""
        ids = array("q", request_ids)[:_MAX_IDS]
        memory = self._memory
        _COUNT.pack_into(memory, _LONGEST.size, 0)
        memory[_HEAD : _HEAD + 8 * len(ids)] = ids.tobytes()
        _COUNT.pack_into(memory, _LONGEST.size, len(ids))

    def write_longest_step(self, seconds: float) -> None:
        _LONGEST.pack_into(self._memory, 0, seconds)

    @property
    def running_ids(self) -> frozenset[int]:
        """Return the requests that ran in the last pass, if the process died or hangs in it."""
        (count,) = _COUNT.unpack_from(self._memory, _LONGEST.size)
        ids = array("q")
        ids.frombytes(self._memory[_HEAD : _HEAD + 8 * min(count, _MAX_IDS)])
        return frozenset(ids)

    @property
    def longest_step(self) -> float:
        return float(_LONGEST.unpack_from(self._memory, 0)[0])

    def close(self) -> None:
        self._memory.close()
