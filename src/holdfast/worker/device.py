"""The device of an engine: whether there can be one, its choice, what of it decides bits, its free memory.

Importing this imports no torch: `require_gpu` refuses what is certainly not there in an instant.
`choose_device` asks torch for the rest, before weights are loaded.
"""

import ctypes
import hashlib
import logging
import os
import platform
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.numerics.arrays import HOST, Device
from holdfast.numerics.backends.c.build import cpu_flags
from holdfast.numerics.backends.c.kernels import has_c_kernels

_log = logging.getLogger(__name__)
_MIN_CAPABILITY = (8, 0)
_CUBLAS = re.compile(r"libcublasLt\.so")
_NO_CUDA = re.compile(r"^cuda(?:\s*:[^=\n]*)?\s*=\s*None\s*$", re.MULTILINE)
_DRIVER = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
_CAPABILITY = (75, 76)  # device attributes of the driver: major and minor
_ROCM = Path("/dev/kfd")  # torch for ROCm calls its devices cuda, too


def require_gpu(device: str, kernels: str) -> None:
    """Raise `ConfigError` if the settings `device` and `kernels` ask for a GPU that cannot be there."""
    if not device.startswith("cuda"):
        return
    if kernels in ("c", "torch"):
        raise ConfigError(
            f"kernels {kernels} are for a CPU, and the device is {device}; use kernels auto or triton"
        )
    reason = _why_no_gpu()
    if reason is not None:
        raise ConfigError(f"device is {device}, but {reason}; use device auto or cpu")
    _require_triton(device)


def compute_capability(device: str, kernels: str) -> tuple[int, int] | None:
    """Return the compute capability of the NVIDIA GPU that the settings `device` and `kernels` mean, as
    the driver says. Return None if they mean a CPU, or if it cannot be told."""
    name, _, number = device.partition(":")
    is_wanted = name in ("auto", "cuda") and kernels in ("auto", "triton") and has_triton()
    if not is_wanted or _ROCM.exists() or _why_no_gpu() is not None:
        return None
    try:
        driver = ctypes.CDLL(_DRIVER)
        handle, values = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
        failures = [driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(handle), int(number or 0))]
        for value, attribute in zip(values, _CAPABILITY, strict=True):
            failures.append(driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle))
    except (OSError, AttributeError, ValueError):
        return None
    return None if any(failures) else (values[0].value, values[1].value)


def unused_gpu_bytes(device: str) -> int:
    """Return the free bytes of a GPU, as the driver says. Its context is opened and given back."""
    handle, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    driver = ctypes.CDLL(_DRIVER)
    failures = [
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(handle), int(device.partition(":")[2] or 0)),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle),
        driver.cuCtxSetCurrent(context),
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        driver.cuDevicePrimaryCtxRelease_v2(handle),
    ]
    if any(failures):
        raise ConfigError(f"the free memory of the GPU cannot be read (device {device})")
    return free.value


def open_context(device: str) -> None:
    """Open the context of this GPU, so that torch finds it open. It takes a part of a second."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    driver = ctypes.CDLL(_DRIVER)
    driver.cuDeviceGet(ctypes.byref(handle), int(device.partition(":")[2] or 0))
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)


def _why_no_gpu() -> str | None:
    if _ROCM.exists():
        return None
    if find_spec("torch") is None:
        return "torch is not installed (pip install 'holdfast[gpu]')"
    if _torch_is_cpu_only():
        return "the installed torch is a build without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return None if _has_driver() else "this machine has no NVIDIA driver (libcuda.so.1)"


def _torch_is_cpu_only() -> bool:
    """Return what torch's version file says. The package is found, not imported."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            return _NO_CUDA.search(Path(folder, "version.py").read_text(encoding="utf-8")) is not None
        except OSError:
            return False
    return False


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def choose_device(wanted: str, kernels: str = "auto") -> Device:
    """Return the device for the settings `device` and `kernels`.

    "auto" is a GPU if torch sees one and triton is installed, unless CPU kernels are asked for. A CPU is
    `HOST` if C kernels compute; torch is imported only where it may be needed.
    """
    if wanted == "cpu" or (wanted == "auto" and kernels in ("c", "torch")):
        return _cpu(kernels)
    if wanted == "auto":
        if not has_triton() or _why_no_gpu() is not None or not _sees_gpu():
            return _cpu(kernels)
        device = _current_gpu()
        reason = _why_unsupported(device)
        if reason is not None:
            _log.warning("using the CPU: %s", reason)
            return _cpu(kernels)
        return device
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"device is {wanted}, but this torch sees no CUDA device; use device auto or cpu")
    _require_triton(wanted)
    device = _current_gpu() if wanted == "cuda" else torch.device(wanted)
    if device.index >= torch.cuda.device_count():
        raise ConfigError(f"device is {wanted}, but there are only {torch.cuda.device_count()} CUDA devices")
    reason = _why_unsupported(device)
    if reason is not None:
        raise ConfigError(f"device is {wanted}, but {reason}; use device cpu")
    return device


def _cpu(kernels: str) -> Device:
    """Return main memory with the arrays that these kernels compute on."""
    if kernels == "c" or (kernels == "auto" and has_c_kernels()):
        host: Device = HOST
        return host
    require_torch(
        "kernels torch" if kernels == "torch" else "a CPU without C kernels (a C compiler builds them)"
    )
    import torch

    return torch.device("cpu")


def _sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def require_torch(what: str) -> None:
    """Raise `ConfigError` if torch is not installed. what: what needs it."""
    if find_spec("torch") is None:
        raise ConfigError(
            f"{what} needs torch, which is not installed; install it with: pip install 'holdfast[torch]'"
        )


def _why_unsupported(device: Device) -> str | None:
    """Return why the kernels do not run on this GPU, or None. Triton compiles for capability 8.0
    (Ampere) and newer; bf16 needs it, too."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    if torch.version.hip is not None or (major, minor) >= _MIN_CAPABILITY:
        return None
    name = torch.cuda.get_device_name(device)
    return f"{name} has compute capability {major}.{minor}, and the kernels need 8.0 or newer"


def has_triton() -> bool:
    return find_spec("triton") is not None


def _require_triton(device: str) -> None:
    if not has_triton():
        raise ConfigError(f"device is {device}, which needs triton; install it with: pip install triton")


def _current_gpu() -> Device:
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def device_name(device: Device) -> str:
    """Return the name that the system gives the device."""
    if device.type != "cuda":
        return cpu_name()
    import torch

    return torch.cuda.get_device_name(device)


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


def device_parts(device: Device) -> dict[str, str | int | None]:
    """Return the properties of the device that decide bits.

    Of a GPU: kind, name, capability, number of multiprocessors (the library splits work by it), CUDA and
    cuBLAS versions; not the driver. Of a CPU: kind, name, instruction set.
    """
    if device.type != "cuda":
        instructions = hashlib.sha256(cpu_flags().encode()).hexdigest()
        return {"kind": "cpu", "name": cpu_name(), "instructions": instructions}
    import torch

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
    import torch

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


def free_memory(device: Device) -> int:
    """Return the free bytes of a GPU, after torch has released its unused cache."""
    import torch

    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)
