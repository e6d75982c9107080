"""Build the C kernels with the system's compiler, once per source, compiler and CPU, and cache the
library.

The cache key is a digest of all that decides the machine code. One process builds at a time, and
those that waited find its library. A build goes to a temporary file that is then renamed. If the
cache cannot be written, the library stays in a temporary folder.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.numerics.cache_dir import cache_dir

if sys.platform != "win32":
    import fcntl

_SOURCE_DIR = Path(__file__).parent
_UNITS = (
    *("block_linear.c", "linear.c", "attention.c", "rowwise.c", "sampling.c", "blocks.c", "layer.c"),
    "entry.c",
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
    """The library for this machine, from the cache or newly built from this folder.

    Raises ConfigError if it cannot be built.
    """
    compiler, version = find_compiler()
    flags = (*FLAGS, "-mcpu=native" if _is_arm() else "-march=native")
    cached = _cache_dir() / f"{_cache_key(sources, flags, version)}.so"
    if not cached.exists():
        with _locked(cached.parent):
            if not cached.exists():
                cached = _compile(sources, compiler, flags, cached)
    return Built(cached, version)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for other processes that hold this lock. Where there is none, two may build at once."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _is_arm() -> bool:
    return platform.machine() in ("aarch64", "arm64")


def find_compiler() -> tuple[str, str]:
    """The C compiler and the first line of its version. Raises ConfigError if there is none."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc"]
    for name in names:
        found = shutil.which(name)
        if found:
            return found, _run([found, "--version"]).splitlines()[0]
    raise ConfigError(
        f"no C compiler ({' or '.join(names)}) for the C kernels; install gcc, or use kernels torch"
    )


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=cwd)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the C compiler could not be run: {error}") from error
    if done.returncode != 0:
        raise ConfigError(f"the kernels could not be built with {command[0]}: {done.stderr.strip()[-600:]}")
    return done.stdout


def cpu_flags() -> str:
    """The lines of /proc/cpuinfo that name the CPU and its instructions, which -march=native
    depends on."""
    names = ("flags", "Features", "model name", "CPU part", "CPU implementer", "CPU variant")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.split(":")[0].strip() in names}))


def _cache_key(sources: Path, flags: tuple[str, ...], version: str) -> str:
    """Of everything the machine code depends on, raw. It is not part of the recipe: most of it
    decides no bit."""
    parts = [" ".join(flags), version, platform.machine(), cpu_flags()]
    parts += source_texts(sources)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def source_texts(sources: Path = _SOURCE_DIR) -> list[str]:
    return [(sources / name).read_text() for name in (*_UNITS, *_HEADERS)]


def _cache_dir() -> Path:
    return cache_dir() / "kernels"


def knows_flags(compiler: str, flags: Sequence[str]) -> bool:
    """Whether this compiler accepts the flags."""
    command = [compiler, *flags, "-E", "-x", "c", os.devnull, "-o", os.devnull]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def compile_library(compiler: str, flags: Sequence[str], target: Path, sources: Path = _SOURCE_DIR) -> None:
    """Compile the kernels for the instruction set that the flags name."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as work:
        built = Path(work) / "kernels.so"
        _compile_units(sources, compiler, (*FLAGS, *flags), built)
        shutil.copyfile(built, target)


def _compile(sources: Path, compiler: str, flags: tuple[str, ...], target: Path) -> Path:
    """Compile in a temporary folder, then move the library to `target` if that can be written."""
    work = Path(tempfile.mkdtemp(prefix="holdfast-"))
    built = work / "kernels.so"
    try:
        _compile_units(sources, compiler, flags, built)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".tmp", delete=False) as file:
            file.write(built.read_bytes())
        os.replace(file.name, target)
    except OSError:
        return built  # it stays in its temporary folder
    shutil.rmtree(work, ignore_errors=True)
    return target


def _compile_units(sources: Path, compiler: str, flags: tuple[str, ...], built: Path) -> None:
    """Compile all units in parallel processes, then link."""
    objects = [built.with_name(f"{name}.o") for name in _UNITS]
    commands = [
        [compiler, *flags, "-c", str(sources / name), "-o", str(out)]
        for name, out in zip(_UNITS, objects, strict=True)
    ]
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    messages = [process.communicate()[1] for process in running]
    for process, message in zip(running, messages, strict=True):
        if process.returncode != 0:
            raise ConfigError(f"the kernels could not be built with {compiler}: {message.strip()[-600:]}")
    _run([compiler, *flags, "-shared", *map(str, objects), "-o", str(built), "-lm"])
