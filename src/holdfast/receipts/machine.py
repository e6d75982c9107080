"""The machine that made a receipt, for an auditor.

No bit depends on any of this, so none of it is in the fingerprint and a replay does not compare it.
There is no host name, no address and no time.
"""

import ctypes
import platform
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.receipts.canonical_json import Digest, digest_of
from holdfast.version import __version__

_DRIVER = re.compile(r"\b\d{3,}\.\d+(\.\d+)?\b")  # 550.54.15, in a line that begins with NVRM version

Text = Annotated[str, Meta(max_length=256)]


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """device is the name of what computed, cpu that of its host. driver is the GPU driver's
    version, kernels the digest of the list of kernels that the certificate saw; both only on a GPU.
    """

    device: Text
    driver: Text | None
    kernels: Digest | None
    cpu: Text
    system: Text
    architecture: Text
    python: Text
    holdfast: Text


def describe_machine(kind: str, device: str, cpu: str, kernels: Sequence[str]) -> Machine:
    """kind is cpu or cuda, device and cpu are names, kernels the certificate's."""
    return Machine(
        device=device[:256],
        driver=driver_version() if kind == "cuda" else None,
        kernels=digest_of(list(kernels)) if kernels else None,
        cpu=cpu[:256],
        system=platform.system(),
        architecture=platform.machine(),
        python=platform.python_version(),
        holdfast=__version__,
    )


def with_kernels(machine: Machine, kernels: Sequence[str]) -> Machine:
    return msgspec.structs.replace(machine, kernels=digest_of(list(kernels)) if kernels else None)


@cache
def driver_version() -> str | None:
    """Return the version of the NVIDIA driver: of the kernel module, else as its library reports it."""
    try:
        if version := _driver_in(Path("/proc/driver/nvidia/version").read_text()):
            return version
    except OSError:
        pass
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(80)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            return text.value.decode(errors="replace")
    except (OSError, AttributeError):
        pass
    return None


def library_version(package: str) -> str | None:
    from importlib import metadata  # takes time to import

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _driver_in(text: str) -> str | None:
    found = _DRIVER.search(text)
    return None if found is None else found[0]
