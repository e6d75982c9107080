"""The device of an engine: its choice, what of it decides bits, its free memory."""

import ctypes
import hashlib
import importlib.util
import logging
import platform
import re
from functools import cache
from pathlib import Path

import torch

from holdfast.errors import ConfigError
from holdfast.numerics.backends.c.build import cpu_flags

_log = logging.getLogger(__name__)
_MIN_CAPABILITY = (8, 0)
_CUBLAS = re.compile(r"libcublasLt\.so")


def choose_device(wanted: str, kernels: str = "auto") -> torch.device:
    """Return the torch device for the settings `device` and `kernels`.

    "auto" is a GPU if torch sees one and triton is installed, unless CPU kernels are asked for.
    """
    if wanted == "cpu" or (wanted == "auto" and kernels in ("c", "torch")):
        return torch.device("cpu")
    if wanted == "auto":
        if not (torch.cuda.is_available() and has_triton()):
            return torch.device("cpu")
        device = _current_gpu()
        reason = _why_unsupported(device)
        if reason is not None:
            _log.warning("using the CPU: %s", reason)
            return torch.device("cpu")
        return device
    if not torch.cuda.is_available():
        raise ConfigError(f"device is {wanted}, but this torch sees no CUDA device; use device auto or cpu")
    if not has_triton():
        raise ConfigError(f"device is {wanted}, which needs triton; install it with: pip install triton")
    device = _current_gpu() if wanted == "cuda" else torch.device(wanted)
    if device.index >= torch.cuda.device_count():
        raise ConfigError(f"device is {wanted}, but there are only {torch.cuda.device_count()} CUDA devices")
    reason = _why_unsupported(device)
    if reason is not None:
        raise ConfigError(f"device is {wanted}, but {reason}; use device cpu")
    return device


def _why_unsupported(device: torch.device) -> str | None:
    """Return why the kernels do not run on this GPU, or None. Triton compiles for capability 8.0
    (Ampere) and newer; bf16 needs it, too."""
    major, minor = torch.cuda.get_device_capability(device)
    if torch.version.hip is not None or (major, minor) >= _MIN_CAPABILITY:
        return None
    name = torch.cuda.get_device_name(device)
    return f"{name} has compute capability {major}.{minor}, and the kernels need 8.0 or newer"


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _current_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def device_name(device: torch.device) -> str:
    """Return the name that the system gives the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """Return the name that the system gives the processor."""
    names: list[str] = []
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU implementer", "CPU part")):
                names.append(line.split(":", 1)[1].strip())
    except OSError:
        pass
    return f"{platform.machine()} {' '.join(dict.fromkeys(names))}".strip()


def device_parts(device: torch.device) -> dict[str, str | int | None]:
    """Return the properties of the device that decide bits.

    Of a GPU: kind, name, capability, number of multiprocessors (the library splits work by it), CUDA and
    cuBLAS versions; not the driver. Of a CPU: kind, name, instruction set.
    """
    if device.type != "cuda":
        instructions = hashlib.sha256(cpu_flags().encode()).hexdigest()
        return {"kind": "cpu", "name": cpu_name(), "instructions": instructions}
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "kind": "cuda",
        "name": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "multiprocessors": torch.cuda.get_device_properties(device).multi_processor_count,
        "cuda": torch.version.cuda,
        "cublas": cublas_version(),
    }


@cache
def cublas_version() -> str | None:
    """Return the version that the loaded cuBLAS reports; if it does not, the CUDA version of torch."""
    try:
        mapped = {
            line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
        }
        for path in sorted(mapped):
            if _CUBLAS.search(path):
                get_version = ctypes.CDLL(path).cublasLtGetVersion
                get_version.restype = ctypes.c_size_t
                return str(get_version())
    except (OSError, AttributeError):
        pass
    return torch.version.cuda


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, after torch has released its unused cache."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)
