"""Building an engine: memory that it gives back, GPUs that it fails on."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.engine.config import EngineConfig
from holdfast.engine.start import builder, start_up
from holdfast.engine.start.start_up import (
    _clean_library_mappings,
    explain_kernel_failure,
    release_library_pages,
)
from holdfast.errors import ConfigError

GPU = torch.device("cuda", 0)
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


class PTXASError(Exception):
    __module__ = "triton.runtime.errors"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PTXASError("ptxas died"), "could not be compiled"),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), "needs a C compiler"),
        (RuntimeError("CUDA error: no kernel image is available for execution"), "update the driver"),
        (RuntimeError("The CUDA driver version is insufficient"), "update the driver"),
    ],
    ids=["ptxas", "no compiler", "no kernel image", "driver"],
)
def test_kernel_failure_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, advice: str
) -> None:
    monkeypatch.setattr(start_up, "device_name", lambda device: "H200")
    message = explain_kernel_failure(error, GPU)
    assert message is not None and message.startswith("H200 cannot run") and advice in message
    assert str(error) in message and "use device cpu" in message


def test_other_errors_and_cpu_errors_are_not_explained() -> None:
    assert explain_kernel_failure(ValueError("a bug"), GPU) is None
    assert explain_kernel_failure(PTXASError("ptxas died"), torch.device("cpu")) is None


def test_failure_to_build_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tiny_llama: Any) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise PTXASError("ptxas died")

    monkeypatch.setattr(builder, "open_backend", fail)
    monkeypatch.setattr(builder, "explain_kernel_failure", lambda error, device: f"explained: {error}")
    with pytest.raises(ConfigError, match="explained: ptxas died"):
        builder.build(EngineConfig(str(tiny_llama)))
