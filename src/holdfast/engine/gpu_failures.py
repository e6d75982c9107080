"""Says what to do when a GPU kernel cannot be built or run while an engine starts."""

import torch

from holdfast.worker.device import device_name

_COMPILER = ("failed to find c compiler", "gcc", "cc1", "cuda.h", "python.h")
_DRIVER = ("no kernel image", "driver version is insufficient", "unsupported toolchain", "ptx version")


def explain_kernel_failure(error: BaseException, device: torch.device) -> str | None:
    """What failed and what to do; None if this error does not come from a GPU kernel."""
    if device.type != "cuda":
        return None
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    if any(sign in lowered for sign in _DRIVER):
        advice = "the driver or the GPU is too old for the installed torch and triton: update the driver"
    elif type(error).__module__.startswith("triton") or any(sign in lowered for sign in _COMPILER):
        advice = "a kernel could not be compiled: Triton needs a C compiler (gcc) and a GPU of capability 8.0 or newer"
    elif isinstance(error, torch.AcceleratorError):
        advice = "the GPU failed: restart the process, and look at the driver's log"
    else:
        return None
    first_lines = " ".join(text.split())[:500]
    return f"{device_name(device)} cannot run this engine; {advice}, or use device cpu ({first_lines})"
