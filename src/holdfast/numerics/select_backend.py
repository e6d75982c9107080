"""Opens the arithmetic for this machine: on a CPU compiled kernels where there is a compiler and torch operations elsewhere,
on a GPU Triton's kernels around the library's products."""

import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

import torch

from holdfast.errors import ConfigError
from holdfast.numerics.backends.c.backend import CBackend
from holdfast.numerics.backends.c.kernels import load_kernels
from holdfast.numerics.backends.torch.backend import TorchBackend
from holdfast.numerics.ops import Backend

_log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CPU = torch.device("cpu")

Path = Literal["auto", "compiled", "library", "triton"]


def open_arithmetic(
    dtype: torch.dtype,
    *,
    path: Path = "auto",
    num_threads: int,
    device: torch.device = CPU,
    plain: bool = False,
    slices: Mapping[tuple[int, int], int] | None = None,
    cuts: Mapping[tuple[int, int], Mapping[int, int]] | None = None,
) -> Backend:
    """The arithmetic for activations of `dtype`. "auto" on a CPU falls back to the library path, with one warning.

    On a GPU, `slices` says how many slices K has in a product of shape (N, K), `cuts` by rows where its columns are cut,
    and `plain` that passes which are not canonical use the library's own products.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"no arithmetic for {dtype}; use one of {', '.join(map(str, DTYPES))}")
    if num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    if path not in ("auto", "compiled", "library", "triton"):
        raise ConfigError(f"unknown arithmetic path {path!r}; use auto, compiled, library or triton")
    if uses_triton(path, device):
        return _open_triton(dtype, device, plain, slices or {}, cuts or {})
    if path == "library":
        return TorchBackend(dtype)
    try:
        kernels = load_kernels()
    except ConfigError as error:
        if path == "compiled":
            raise
        _log.warning("using the slower library arithmetic: %s", error)
        return TorchBackend(dtype)
    return CBackend(dtype, kernels, num_threads)


def uses_triton(path: Path, device: torch.device) -> bool:
    """Whether the arithmetic is Triton's; raises where path and device do not go together."""
    if device.type == "cuda" and path in ("compiled", "library"):
        raise ConfigError(
            f"kernels {path} are for a CPU, and the device is {device}; use kernels auto or triton"
        )
    if device.type != "cuda" and path != "triton":
        return False
    if find_spec("triton") is None:
        raise ConfigError(
            "kernels triton need triton, which is not installed; install it with: pip install triton"
        )
    if device.type != "cuda" and not triton_is_interpreted():
        raise ConfigError(
            "kernels triton need a CUDA device; on a CPU they run only under Triton's interpreter, for tests "
            "(TRITON_INTERPRET=1 in the environment), so use kernels auto"
        )
    return True


def triton_is_interpreted() -> bool:
    """As triton reads it, when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "y", "on", "yes", "true")


def _open_triton(
    dtype: torch.dtype,
    device: torch.device,
    plain: bool,
    slices: Mapping[tuple[int, int], int],
    cuts: Mapping[tuple[int, int], Mapping[int, int]],
) -> Backend:
    from holdfast.numerics.backends.triton.backend import (
        TritonBackend,
    )  # triton is imported only where it is used

    return TritonBackend(dtype, device, slices, plain, cuts)
