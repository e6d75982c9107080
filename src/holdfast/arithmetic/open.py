"""Opens the arithmetic for this machine: compiled kernels where there is a compiler, torch operations
elsewhere."""

import logging
from typing import Literal

import torch

from holdfast.arithmetic.compiled.kernels import load_kernels
from holdfast.arithmetic.compiled.operations import CompiledArithmetic
from holdfast.arithmetic.library import LibraryArithmetic
from holdfast.arithmetic.ops import Arithmetic
from holdfast.errors import ConfigError

_log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def open_arithmetic(
    dtype: torch.dtype, *, path: Literal["auto", "compiled", "library"] = "auto", num_threads: int
) -> Arithmetic:
    """The arithmetic for activations of `dtype`. "auto" falls back to the library path, with one warning."""
    if dtype not in DTYPES:
        raise ConfigError(f"no arithmetic for {dtype}; use one of {', '.join(map(str, DTYPES))}")
    if num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    if path == "library":
        return LibraryArithmetic(dtype)
    if path not in ("auto", "compiled"):
        raise ConfigError(f"unknown arithmetic path {path!r}; use auto, compiled or library")
    try:
        kernels = load_kernels()
    except ConfigError as error:
        if path == "compiled":
            raise
        _log.warning("using the slower library arithmetic: %s", error)
        return LibraryArithmetic(dtype)
    return CompiledArithmetic(dtype, kernels, num_threads)
