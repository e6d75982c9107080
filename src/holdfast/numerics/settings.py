"""Process-wide numeric settings of torch: applied once, recorded in the fingerprint, never changed.

A second call with the same values does nothing. A call with other values raises, because tokens
computed before and after could differ in bits. The settings of a GPU are applied when the first
engine on one starts.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import torch

from holdfast.errors import ConfigError

# Variables without effect: the number of threads is set here.
_OVERRULED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_DECIDING = ("ONEDNN_", "DNNL_", "MKL_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "ATEN_CPU_CAPABILITY")
_DECIDING_ON_CUDA = ("CUBLAS", "NVIDIA_TF32_OVERRIDE", "TORCH_BLAS", "TORCH_ALLOW_TF32", "TRITON_")
# Variables about triton's files and output.
_DECIDING_NOTHING = (
    *("TRITON_CACHE", "TRITON_HOME", "TRITON_DUMP", "TRITON_OVERRIDE_DIR", "TRITON_KERNEL_DUMP"),
    *("TRITON_PRINT", "TRITON_STORE_BINARY", "TRITON_ALWAYS_COMPILE"),
)
_REDUCED_PRECISION = (
    *("allow_tf32", "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"),
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

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "environment": dict(self.environment), "cuda": dict(self.cuda)}

    def deciding(self) -> dict[str, "int | str | Mapping[str, str] | Mapping[str, bool]"]:
        """The settings that decide bits. On a GPU the number of CPU threads is not one of them."""
        common: dict[str, str | Mapping[str, str]] = {
            "matmul_precision": self.matmul_precision,
            "cpu_capability": self.cpu_capability,
            "environment": dict(self.environment),
        }
        return {**common, "cuda": dict(self.cuda)} if self.cuda else {"threads": self.threads, **common}


_applied: NumericSettings | None = None
_applied_on_cuda: NumericSettings | None = None
_device = torch.device("cpu")


def apply_numeric_settings(
    num_threads: int | None = None, *, device: torch.device = _device
) -> NumericSettings:
    """Set torch's threads (None: torch's default) and fp32 precision, for a GPU also that of its
    GEMMs."""
    global _applied, _applied_on_cuda, _device
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    if _applied is None:
        _applied = _apply(num_threads)
    elif num_threads is not None and num_threads != _applied.threads:
        raise ConfigError(
            f"the numeric settings are for {_applied.threads} threads and cannot change to "
            f"{num_threads} in one process; start a new process, or ask for the same number"
        )
    if device.type != "cuda":
        return _applied
    if _applied_on_cuda is None:
        _applied_on_cuda = _apply_on_cuda(_applied)
    _device = device
    torch.cuda.set_device(device)
    return _applied_on_cuda


def pin_threads() -> None:
    """Apply the settings to the calling thread.

    OpenMP's number of threads and torch's current GPU are per thread.
    """
    if _applied is not None:
        torch.set_num_threads(_applied.threads)
    if _device.type == "cuda":
        torch.cuda.set_device(_device)


def _apply(num_threads: int | None) -> NumericSettings:
    torch.set_num_threads(num_threads if num_threads is not None else torch.get_num_threads())
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    return NumericSettings(
        threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        environment=_variables(_DECIDING, but=_OVERRULED),
    )


def _apply_on_cuda(settings: NumericSettings) -> NumericSettings:
    """Forbid reduced precision in the inputs and sums of GEMMs. Works without a GPU as well."""
    matmul = torch.backends.cuda.matmul
    for name in _REDUCED_PRECISION:
        setattr(matmul, name, False)
    variables = {*settings.environment, *_variables(_DECIDING_ON_CUDA, but=_DECIDING_NOTHING)}
    return replace(
        settings,
        environment=tuple(sorted(variables)),
        cuda=tuple((name, _as_bool(getattr(matmul, name))) for name in _REDUCED_PRECISION),
    )


def _as_bool(value: object) -> bool:
    """Newer versions of torch return a pair for some settings: reduced precision, and whether
    split-K may use it."""
    return any(value) if isinstance(value, tuple) else bool(value)


def _variables(beginnings: tuple[str, ...], *, but: Iterable[str]) -> tuple[tuple[str, str], ...]:
    left_out = tuple(but)
    return tuple(
        (name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(beginnings) and not name.startswith(left_out)
    )
