"""Open the backend for a device: C kernels on a CPU with a C compiler, torch operations without
one, Triton on a GPU."""

import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec

from holdfast.errors import ConfigError
from holdfast.numerics.arrays import Device, DType, dtype_name, main_memory
from holdfast.numerics.backends.c.backend import CBackend
from holdfast.numerics.backends.c.kernels import has_c_kernels, load_kernels
from holdfast.numerics.ops import Backend
from holdfast.numerics.recipe import KERNEL_BACKENDS, KernelBackend

_log = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")


def open_backend(
    dtype: DType,
    *,
    kernels: KernelBackend = "auto",
    num_threads: int,
    device: Device | None = None,
    portable: bool = False,
    vendor_gemm: bool = False,
    split_k: Mapping[tuple[int, int], int] | None = None,
    split_n: Mapping[tuple[int, int], Mapping[int, int]] | None = None,
    block_formats: frozenset[str] = frozenset(),
) -> Backend:
    """Return a backend for activations of `dtype`. On a CPU "auto" falls back to torch with a warning if
    there is no compiler.

    portable: the recipe that every CPU computes with the same bits, and no other.

    block_formats: C kernels keep weights of these formats in their quantised blocks.

    device: None is main memory, with arrays of the library of `dtype`.

    On a GPU: split_k and split_n are those of `Linear`, by GEMM shape (N, K). vendor_gemm: fast
    passes use the library's own GEMMs, without the recipe.
    """
    if dtype_name(dtype) not in DTYPES:
        raise ConfigError(f"no backend for {dtype}; use one of {', '.join(DTYPES)}")
    device = device or main_memory(dtype)
    if num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    if kernels not in KERNEL_BACKENDS:
        raise ConfigError(f"unknown kernels {kernels!r}; use auto, c, torch or triton")
    if portable:
        _check_portable(kernels, device)
    if uses_triton(kernels, device):
        # It imports triton.
        from holdfast.numerics.backends.triton.backend import TritonBackend

        return TritonBackend(dtype, device, split_k or {}, vendor_gemm, split_n)
    if kernels == "torch":
        return _torch_backend(dtype)
    try:
        library = load_kernels()
    except ConfigError as error:
        if kernels == "c" or portable:
            raise
        _log.warning("using the slower torch backend: %s", error)
        return _torch_backend(dtype)
    return CBackend(
        dtype, library, num_threads, device=device, portable=portable, block_formats=block_formats
    )


def _torch_backend(dtype: DType) -> Backend:
    from holdfast.numerics.backends.torch.backend import TorchBackend  # imports torch

    return TorchBackend(dtype)


def _check_portable(kernels: KernelBackend, device: Device) -> None:
    if device.type != "cpu":
        raise ConfigError(f"portable is a recipe for CPUs, and the device is {device}; use device cpu")
    if kernels not in ("auto", "c"):
        raise ConfigError(
            f"portable is a recipe of the C kernels, and kernels is {kernels}; use kernels c or auto"
        )


def uses_c_kernels(kernels: KernelBackend, device: Device) -> bool:
    """Return whether `kernels` means C kernels on this device, and they can be loaded or built."""
    return device.type == "cpu" and kernels in ("auto", "c") and has_c_kernels()


def uses_triton(kernels: KernelBackend, device: Device) -> bool:
    """Return whether `kernels` means Triton on this device.

    Raises `ConfigError` if the two do not match.
    """
    if device.type == "cuda" and kernels in ("c", "torch"):
        raise ConfigError(
            f"kernels {kernels} are for a CPU, and the device is {device}; use kernels auto or triton"
        )
    if device.type != "cuda" and kernels != "triton":
        return False
    if find_spec("triton") is None:
        raise ConfigError(
            "kernels triton need triton, which is not installed; install it with: pip install triton"
        )
    if device.type == "cpu" and not triton_is_interpreted():
        raise ConfigError(
            "kernels triton need a CUDA device; on a CPU they run only under Triton's interpreter, for tests "
            "(TRITON_INTERPRET=1 in the environment), so use kernels auto"
        )
    return True


def triton_is_interpreted() -> bool:
    """Return the variable as triton reads it at import."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "y", "on", "yes", "true")
