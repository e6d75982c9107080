"""Process-wide numeric settings: set once, here, recorded for the fingerprint, and never toggled.

A second call with the same values is fine; with other values it raises, because rows computed before and
after would not be comparable.
"""

import os
from dataclasses import asdict, dataclass

import torch

from holdfast.errors import ConfigError

# How many threads there are is set here, whatever these say.
_OVERRULED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_DECIDING = ("ONEDNN_", "DNNL_", "MKL_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "ATEN_CPU_CAPABILITY")


@dataclass(frozen=True)
class NumericSettings:
    """What was set, and what of the environment can change a library's arithmetic."""

    threads: int
    matmul_precision: str
    cpu_capability: str
    environment: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "environment": dict(self.environment)}


_applied: NumericSettings | None = None


def apply_numeric_settings(num_threads: int | None = None) -> NumericSettings:
    """Sets torch's threads (None: as many as torch finds) and fp32 precision; returns the record."""
    global _applied
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    if _applied is not None:
        if num_threads is not None and num_threads != _applied.threads:
            raise ConfigError(
                f"numeric settings were made for {_applied.threads} threads and cannot change to "
                f"{num_threads} in one process; start a new process, or ask for the same number"
            )
        return _applied
    torch.set_num_threads(num_threads if num_threads is not None else torch.get_num_threads())
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    _applied = NumericSettings(
        threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        environment=tuple(
            (name, value)
            for name, value in sorted(os.environ.items())
            if name.startswith(_DECIDING) and name not in _OVERRULED
        ),
    )
    return _applied


def pin_threads() -> None:
    """Make the settings hold in this thread: OpenMP keeps the number of threads for each calling thread by itself."""
    if _applied is not None:
        torch.set_num_threads(_applied.threads)
