"""Whether this machine can have a GPU that torch sees, and which, found out without importing torch.

Only what is certain is refused here. `choose_device` asks torch for the rest, before weights are
loaded.
"""

import ctypes
import os
import re
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import ConfigError

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
    if find_spec("triton") is None:
        raise ConfigError(f"device is {device}, which needs triton; install it with: pip install triton")


def compute_capability(device: str, kernels: str) -> tuple[int, int] | None:
    """Return the compute capability of the NVIDIA GPU that the settings `device` and `kernels` mean, as
    the driver says. Return None if they mean a CPU, or if it cannot be told."""
    name, _, number = device.partition(":")
    is_wanted = name in ("auto", "cuda") and kernels in ("auto", "triton") and find_spec("triton") is not None
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


def open_context(device: str) -> None:
    """Open the context of this GPU, so that torch finds it open. It takes a part of a second."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    driver = ctypes.CDLL(_DRIVER)
    driver.cuDeviceGet(ctypes.byref(handle), int(device.partition(":")[2] or 0))
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)


def _why_no_gpu() -> str | None:
    if _ROCM.exists():
        return None
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
