"""A readable name of this machine, for titles of reports, and what it computes with. It identifies nothing."""

import platform
import re
from importlib import metadata

import torch

from holdfast.worker.device import cpu_name, device_name

_ARM_PARTS = {  # (implementer, part) in /proc/cpuinfo
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
}


def machine_name() -> str:
    """For example "Neoverse-N1 (aarch64)". An unknown CPU keeps its name in the system."""
    return readable(cpu_name(), platform.machine())


def default_device() -> torch.device:
    """A GPU if torch sees one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_machine_name() -> str:
    """The name of the default device: of its GPU, or of the machine."""
    device = default_device()
    return device_name(device) if device.type == "cuda" else machine_name()


def triton_version() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def readable(name: str, architecture: str) -> str:
    rest = name.removeprefix(architecture).strip()
    codes = re.fullmatch(r"(0x[0-9a-f]+) (0x[0-9a-f]+)", rest)
    known = _ARM_PARTS.get((codes[1], codes[2])) if codes else None
    marketing = re.sub(r"\((?:R|TM)\)|\bCPU\b|@.*$|\bProcessor\b", "", known or rest)
    short = " ".join(marketing.split())
    return f"{short} ({architecture})" if short else architecture
