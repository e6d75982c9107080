"""Libraries of the C kernels that were built before the installation, one for each instruction set.

A wheel for Linux has them in the folder `c_prebuilt`, so that no compiler is needed and the first
start does not wait for one:

    c_prebuilt/manifest.json   digest of sources and flags, compiler, machine, digests of the libraries
    c_prebuilt/avx512vnni.so   ...
    c_prebuilt/libgomp.so.1    OpenMP's library, where the kernels look for it first: a slim system has none

The first target whose instructions this CPU has is used. Sources or flags that differ from the
manifest's, as after an edit in a checkout, and a library that is damaged leave them unused: `build`
compiles then. Where CC is set, `build` compiles as well.
"""

import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.numerics.backends.c import build as building
from holdfast.numerics.backends.c.build import Built, cpu_flags

_log = logging.getLogger(__name__)
PREBUILT_DIR = Path(__file__).parents[1] / "c_prebuilt"
_MANIFEST = "manifest.json"
_OPENMP = "libgomp.so.1"
_LINK_FLAGS = ("-s", "-Wl,-rpath,$ORIGIN")


@dataclass(frozen=True)
class Target:
    """An instruction set to build for. features: as /proc/cpuinfo names them."""

    name: str
    machine: str
    flags: tuple[str, ...]
    features: frozenset[str]


def _x86(name: str, flags: str, features: str) -> Target:
    return Target(name, "x86_64", tuple(flags.split()), frozenset(features.split()))


def _arm(name: str, flags: str, features: str) -> Target:
    return Target(name, "aarch64", tuple(flags.split()), frozenset(features.split()))


_AVX2 = "avx2 fma f16c bmi1 bmi2 movbe abm"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"
# The best first. The bits of a library depend on its vector width and on AMX alone, as those of one
# that is built with -march=native.
TARGETS = (
    _x86(
        "amx",
        "-march=x86-64-v4 -mavx512vnni -mamx-tile -mamx-bf16 -mamx-int8",
        f"{_AVX512} avx512_vnni amx_tile amx_bf16 amx_int8",
    ),
    _x86("avx512vnni", "-march=x86-64-v4 -mavx512vnni", f"{_AVX512} avx512_vnni"),
    _x86("avx512", "-march=x86-64-v4", _AVX512),
    _x86("avxvnni", "-march=x86-64-v3 -mavxvnni", f"{_AVX2} avx_vnni"),
    _x86("avx2", "-march=x86-64-v3", _AVX2),
    _arm("i8mm", "-march=armv8.2-a+fp16+dotprod+i8mm+bf16", "asimd asimdhp asimddp i8mm bf16"),
    _arm("dotprod", "-march=armv8.2-a+fp16+dotprod", "asimd asimdhp asimddp"),
    _arm("neon", "-march=armv8-a", "asimd"),
)


def find_prebuilt(folder: Path = PREBUILT_DIR) -> Built | None:
    """Return the best library for this CPU that was built from the installed sources; None without one."""
    if os.environ.get("CC"):
        return None
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        if manifest["sources"] != source_digest() or manifest["machine"] != platform.machine():
            return None
        compiler, digests = str(manifest["compiler"]), dict(manifest["libraries"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for target in supported_targets():
        library = folder / f"{target.name}.so"
        if target.name in digests:
            # Another target could compute other bits.
            return Built(library, compiler) if _is_intact(library, digests[target.name]) else None
    return None


def _is_intact(library: Path, digest: str) -> bool:
    try:
        if _digest(library) == digest:
            return True
        reason = "it is not as it was built"
    except OSError as error:
        reason = str(error.strerror or error)
    _log.warning("%s cannot be used, so the kernels are built again: %s", library, reason)
    return False


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def supported_targets(targets: Sequence[Target] = TARGETS) -> list[Target]:
    """Return the targets that this CPU can run, the best first."""
    features = _cpu_features()
    machine = platform.machine()
    return [one for one in targets if one.machine == machine and one.features <= features]


def build_all(
    folder: Path, targets: Collection[Target] | None = None, machine: str | None = None
) -> list[str]:
    """Build a library for each target of an architecture, this machine's by default; return their names.

    Without targets these are all, with OpenMP's library beside them, for a wheel. Targets that the compiler
    does not know are left out. Raises ConfigError if none can be built.
    """
    machine = machine or platform.machine()
    compiler, version = building.find_compiler(machine)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (*folder.glob("*.so*"), folder / _MANIFEST):
        stale.unlink(missing_ok=True)
    link_flags: tuple[str, ...] = ()
    if targets is None:
        targets = [one for one in TARGETS if one.machine == machine]
        link_flags = _LINK_FLAGS
        _copy_openmp(compiler, folder)
    known = [one for one in targets if building.knows_flags(compiler, one.flags)]
    for target in known:
        building.compile_library(compiler, target.flags, folder / f"{target.name}.so", link_flags=link_flags)
    manifest = {
        "sources": source_digest(),
        "compiler": version,
        "machine": machine,
        "libraries": {one.name: _digest(folder / f"{one.name}.so") for one in known},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return [one.name for one in known]


def _copy_openmp(compiler: str, folder: Path) -> None:
    """Copy the library that comes with the compiler, if it is a shared one (gcc's)."""
    command = [compiler, f"-print-file-name={_OPENMP}"]
    found = Path(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    )
    if found.is_file():
        shutil.copyfile(found, folder / _OPENMP)


def build_for_this_cpu() -> list[str]:
    """Build the one library that this CPU uses into a checkout, as an editable installation does."""
    return build_all(PREBUILT_DIR, supported_targets()[:1]) if sys.platform == "linux" else []


def source_digest() -> str:
    """Of all that the machine code depends on, except the compiler."""
    flags = [" ".join((one.name, *one.flags)) for one in TARGETS]
    parts = [*building.FLAGS, *flags, *building.source_texts()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _cpu_features() -> frozenset[str]:
    if sys.platform != "linux":
        return frozenset()
    lines = [line.partition(":") for line in cpu_flags().splitlines()]
    return frozenset(
        word for name, _, words in lines if name.strip() in ("flags", "Features") for word in words.split()
    )
