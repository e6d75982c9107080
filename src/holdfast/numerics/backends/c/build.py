"""Build the C kernels with the system's compiler, once per source, compiler and CPU, and cache the
library.

The cache key is a digest of all that decides the machine code. A library that is not as it was
written is built again, before anything of it is loaded. One process builds at a time, and those that
waited find its library. If the cache cannot be written, the library is in a temporary folder until the
process ends.
"""

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.numerics.cache_dir import cache_dir, locked, read_checked, write_checked

_SOURCE_DIR = Path(__file__).parent
_UNITS = (
    *("block_linear.c", "linear.c", "attention.c", "rowwise.c", "sampling.c", "blocks.c", "layer.c"),
    *("recurrence.c", "threads.c", "entry.c"),
)
_HEADERS = (
    *("blocks.h", "block_dot.h", "block_panel.h", "block_tile.h", "simd.h", "simd_plain.h", "kernels.h"),
    *("block_amx.h", "amx_tiles.h", "amx.h"),
)
# No contraction and no reassociation: the sources fix which operations are fused, and their order.
# Instruction scheduling before register allocation would spill the accumulators of the tiles.
FLAGS = (
    *("-std=gnu11", "-O3", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-schedule-insns"),
    *("-fPIC", "-fvisibility=hidden", "-Wno-psabi"),
)


@dataclass(frozen=True)
class Built:
    """A built shared library and its compiler."""

    path: Path
    compiler: str


def build(sources: Path = _SOURCE_DIR) -> Built:
    """Return the library for this machine, from the cache or newly built from this folder.

    Raises ConfigError if it cannot be built.
    """
    compiler, version = find_compiler()
    flags = ["-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"]
    cached = cache_dir() / "kernels" / f"{_cache_key(sources, flags, version)}.so"
    if read_checked(cached) is None:
        with locked(cached.parent):
            if read_checked(cached) is None:
                cached = _compile(sources, compiler, flags, cached)
    return Built(cached, version)


def find_compiler(machine: str | None = None) -> tuple[str, str]:
    """Return the C compiler and the first line of its version. Raises ConfigError if there is none.

    machine: another architecture than this one, such as aarch64; its compiler is Debian's cross compiler.
    """
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc"]
    if machine not in (None, platform.machine()):
        names = [f"{machine}-linux-gnu-gcc"]
    for name in names:
        found = shutil.which(name)
        if found:
            return found, _run([found, "--version"]).splitlines()[0]
    raise ConfigError(
        f"no C compiler ({' or '.join(names)}) for the C kernels; install gcc, or use kernels torch"
    )


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the C compiler could not be run: {error}") from error
    if done.returncode != 0:
        raise ConfigError(f"the kernels could not be built with {command[0]}: {done.stderr.strip()[-600:]}")
    return done.stdout


def cpu_flags() -> str:
    """Return the lines of /proc/cpuinfo that name the CPU and its instructions, which -march=native
    depends on."""
    names = ("flags", "Features", "model name", "CPU part", "CPU implementer", "CPU variant")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.split(":")[0].strip() in names}))


def _cache_key(sources: Path, flags: Sequence[str], version: str) -> str:
    """Of everything the machine code depends on, raw. It is not part of the recipe: most of it
    decides no bit."""
    parts = [" ".join((*FLAGS, *flags)), version, platform.machine(), cpu_flags()]
    parts += source_texts(sources)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def source_texts(sources: Path = _SOURCE_DIR) -> list[str]:
    return [(sources / name).read_text() for name in (*_UNITS, *_HEADERS)]


def knows_flags(compiler: str, flags: Sequence[str]) -> bool:
    """Return whether this compiler accepts the flags."""
    command = [compiler, *flags, "-E", "-x", "c", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def _compile(sources: Path, compiler: str, flags: Sequence[str], target: Path) -> Path:
    """Compile in a temporary folder, then move the library to `target` if that can be written."""
    work = Path(tempfile.mkdtemp(prefix="holdfast-"))
    built = work / "kernels.so"
    try:
        compile_library(compiler, flags, built, sources)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    try:
        write_checked(target, built.read_bytes())
    except OSError:
        atexit.register(shutil.rmtree, work, ignore_errors=True)
        return built  # in its temporary folder
    shutil.rmtree(work, ignore_errors=True)
    return target


def compile_library(
    compiler: str,
    flags: Sequence[str],
    target: Path,
    sources: Path = _SOURCE_DIR,
    link_flags: Sequence[str] = (),
) -> None:
    """Compile all units side by side, then link. flags: of the instruction set."""
    command = [compiler, *FLAGS, *flags]
    with tempfile.TemporaryDirectory(prefix="holdfast-") as work, ThreadPoolExecutor(len(_UNITS)) as pool:
        objects = [f"{work}/{name}.o" for name in _UNITS]
        compiling = [
            pool.submit(_run, [*command, "-c", str(sources / name), "-o", out])
            for name, out in zip(_UNITS, objects, strict=True)
        ]
        for unit in compiling:
            unit.result()
        _run([*command, "-shared", *link_flags, *objects, "-o", str(target), "-lm"])
