"""Memory that building an engine gives back."""

import sys
from pathlib import Path

import pytest
import torch

from holdfast.engine.start_up import _clean_library_mappings, release_library_pages

SMAPS = """\
1000-3000 r-xp 00000000 fe:00 12                         /usr/lib/libsome thing.so.1.2
Rss:                   8 kB
Anonymous:             0 kB
Swap:                  0 kB
3000-4000 r--p 00002000 fe:00 12                         /usr/lib/libsome thing.so.1.2
Rss:                   4 kB
Anonymous:             4 kB
Swap:                  0 kB
4000-5000 r--p 00002000 fe:00 12                         /usr/lib/libplain.so
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
5000-6000 rw-p 00003000 fe:00 12                         /usr/lib/libplain.so
Anonymous:             0 kB
Swap:                  0 kB
6000-7000 r--p 00000000 fe:00 13                         /models/weights.gguf
Anonymous:             0 kB
Swap:                  0 kB
7000-8000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
Swap:                  0 kB
9000-a000 r--p 00002000 fe:00 12                         /usr/lib/libswapped.so
Anonymous:             0 kB
Swap:                  4 kB
8000-9000 r--s 00000000 fe:00 13                         /usr/lib/libshared.so
Anonymous:             0 kB
Swap:                  0 kB
"""


def test_only_unwritten_pages_of_libraries_are_released() -> None:
    assert list(_clean_library_mappings(SMAPS)) == [(0x1000, 0x2000), (0x4000, 0x1000)]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by Linux")
def test_libraries_work_after_their_pages_are_released() -> None:
    x = torch.arange(12.0).view(3, 4)
    before = x @ x.T
    resident = resident_file_kilobytes()
    release_library_pages.cache_clear()
    release_library_pages()
    assert resident_file_kilobytes() < resident
    assert torch.equal(x @ x.T, before)


def resident_file_kilobytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))
