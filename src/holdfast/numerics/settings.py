"""The numeric settings of an engine, as the fingerprint records them.

The number of threads is decided once per process; a call with another number raises, because tokens
computed before and after could differ in bits. Environment variables are read at every call.
`our_settings` makes the settings those recorded here, at every build and every step.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.numerics.arrays import HOST, Device
from holdfast.numerics.settings_guard import decide_num_threads

# Variables without effect: the number of threads is set here.
_OVERRULED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_DECIDING = (
    *("ONEDNN_", "DNNL_", "TORCH_MKLDNN", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "ARM_COMPUTE"),
    *("OMP_", "GOMP_", "KMP_", "LIBOMP_"),
    *("ATEN_", "GLIBC_TUNABLES", "LD_PRELOAD"),  # glibc has several variants of a logarithm
)
_DECIDING_ON_CUDA = (
    *("CUBLAS", "NVIDIA_TF32_OVERRIDE", "TORCH_BLAS", "TORCH_ALLOW_TF32", "TORCH_CUBLAS"),
    "PYTORCH_TUNABLEOP",
    *("TRITON_", "DISABLE_LLVM_OPT", "DISABLE_PTXAS_OPT", "DISABLE_MMA_V", "PTXAS_OPTIONS", "LLVM_"),
    *("CUDA_FORCE_", "CUDA_DISABLE_PTX_JIT"),
)
# Variables about triton's files and output.
_DECIDING_NOTHING = (
    *("TRITON_CACHE", "TRITON_HOME", "TRITON_DUMP", "TRITON_OVERRIDE_DIR", "TRITON_KERNEL_DUMP"),
    *("TRITON_PRINT", "TRITON_STORE_BINARY", "TRITON_ALWAYS_COMPILE"),
)
# Forbidden on a GPU: reduced precision in the inputs and sums of GEMMs.
_REDUCED_PRECISION = (
    "allow_tf32",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
)


@dataclass(frozen=True)
class NumericSettings:
    """The settings, and the environment variables that can change the numerics of a library.

    cuda is empty on a CPU.
    """

    threads: int
    matmul_precision: str
    cpu_capability: str
    environment: tuple[tuple[str, str], ...]
    cuda: tuple[tuple[str, bool], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "environment": dict(self.environment), "cuda": dict(self.cuda)}

    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide bits. On a GPU the number of CPU threads is not one of them."""
        left_out = "threads" if self.cuda else "cuda"
        return {name: value for name, value in self.as_dict().items() if name != left_out}


def numeric_settings(num_threads: int | None = None, *, device: Device = HOST) -> NumericSettings:
    """Return the settings of an engine on this device. num_threads: None is the number decided before, at
    first the machine's."""
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    decided = decide_num_threads(num_threads, device)
    if num_threads is not None and num_threads != decided:
        raise ConfigError(
            f"the numeric settings are for {decided} threads and cannot change to "
            f"{num_threads} in one process; start a new process, or ask for the same number"
        )
    variables = _variables(_DECIDING, but=_OVERRULED)
    on_cuda = device.type == "cuda"
    if on_cuda:
        variables |= _variables(_DECIDING_ON_CUDA, but=_DECIDING_NOTHING)
    return NumericSettings(
        threads=decided,
        matmul_precision="highest",
        cpu_capability=_cpu_capability(device),
        environment=tuple(sorted(variables.items())),
        cuda=tuple((name, False) for name in _REDUCED_PRECISION) if on_cuda else (),
    )


def apply_numeric_settings(
    num_threads: int | None = None, *, device: Device | None = None
) -> NumericSettings:
    """Decide the settings and leave torch with them, for code that runs outside a guard."""
    import torch

    from holdfast.numerics.backends.torch.settings_guard import leave_applied

    device = device or torch.device("cpu")
    settings = numeric_settings(num_threads, device=device)
    leave_applied(device)
    return settings


def _cpu_capability(device: Device) -> str:
    """Return the instructions that torch's own kernels use, if they compute."""
    if device is HOST:
        return ""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _variables(beginnings: tuple[str, ...], *, but: tuple[str, ...]) -> dict[str, str]:
    """A library reads a variable when it is loaded. So the value at the start of the process is
    given too, if it was another one."""
    at_start, now = _environment_at_start(), dict(os.environ)
    found = {}
    for name in sorted({*at_start, *now}):
        if name.startswith(beginnings) and not name.startswith(but):
            first, last = at_start.get(name, now.get(name)), now.get(name)
            found[name] = str(last) if first == last else f"{last} (at start: {first})"
    return found


def _environment_at_start() -> dict[str, str]:
    """Return the environment this process was started with. Empty where the system does not tell."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}
