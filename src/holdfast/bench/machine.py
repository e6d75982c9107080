"""A readable name of this machine, for titles of reports. It identifies nothing."""

import platform
import re

from holdfast.worker.device import cpu_name

_ARM_PARTS = {  # (implementer, part) in /proc/cpuinfo
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
}


def machine_name() -> str:
    """For example "Neoverse-N1 (aarch64)". An unknown CPU keeps its name in the system."""
    return readable(cpu_name(), platform.machine())


def readable(name: str, architecture: str) -> str:
    rest = name.removeprefix(architecture).strip()
    codes = re.fullmatch(r"(0x[0-9a-f]+) (0x[0-9a-f]+)", rest)
    known = _ARM_PARTS.get((codes[1], codes[2])) if codes else None
    marketing = re.sub(r"\((?:R|TM)\)|\bCPU\b|@.*$|\bProcessor\b", "", known or rest)
    short = " ".join(marketing.split())
    return f"{short} ({architecture})" if short else architecture
