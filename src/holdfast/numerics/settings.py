"""Process-wide numeric settings: set once, here, recorded for the fingerprint, and never toggled.

A second call with the same values is fine; with other values it raises, because rows computed before and
after would not be comparable. What concerns a GPU is set when the first engine on one is started.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import torch

from holdfast.errors import ConfigError

# How many threads there are is set here, whatever these say.
_OVERRULED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_DECIDING = ("ONEDNN_", "DNNL_", "MKL_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "ATEN_CPU_CAPABILITY")
_DECIDING_ON_CUDA = ("CUBLAS", "NVIDIA_TF32_OVERRIDE", "TORCH_BLAS", "TORCH_ALLOW_TF32", "TRITON_")
# Where triton keeps files and what it prints.
_DECIDING_NOTHING = (
    *("TRITON_CACHE", "TRITON_HOME", "TRITON_DUMP", "TRITON_OVERRIDE_DIR", "TRITON_KERNEL_DUMP"),
    *("TRITON_PRINT", "TRITON_STORE_BINARY", "TRITON_ALWAYS_COMPILE"),
)
_REDUCED_PRECISION = (
    *("allow_tf32", "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"),
)


@dataclass(frozen=True)
class NumericSettings:
    """What was set, and what of the environment can change a library's backend. cuda is empty without a GPU."""

    threads: int
    matmul_precision: str
    cpu_capability: str
    environment: tuple[tuple[str, str], ...]
    cuda: tuple[tuple[str, bool], ...] = ()

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "environment": dict(self.environment), "cuda": dict(self.cuda)}

    def deciding(self) -> dict[str, "int | str | Mapping[str, str] | Mapping[str, bool]"]:
        """What of them decides bits. On a GPU no sum is taken by the CPU's threads."""
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
    """Sets torch's threads (None: as many as torch finds) and fp32 precision, for a GPU also its library's; returns the
    record."""
    global _applied, _applied_on_cuda, _device
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    if _applied is None:
        _applied = _apply(num_threads)
    elif num_threads is not None and num_threads != _applied.threads:
        raise ConfigError(
            f"numeric settings were made for {_applied.threads} threads and cannot change to "
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
    """Make the settings hold in this thread: OpenMP keeps the number of threads for each calling thread by itself, and a
    thread begins on the first GPU."""
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
    """No product of a GPU may drop bits of its inputs or of its sums. These can be set without a GPU, too."""
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
    """Newer versions of torch answer with a pair for some settings: reduced precision, and whether K may be split."""
    return any(value) if isinstance(value, tuple) else bool(value)


def _variables(beginnings: tuple[str, ...], *, but: Iterable[str]) -> tuple[tuple[str, str], ...]:
    left_out = tuple(but)
    return tuple(
        (name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(beginnings) and not name.startswith(left_out)
    )
