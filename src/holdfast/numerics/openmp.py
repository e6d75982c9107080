"""The OpenMP runtime that torch uses, called by ctypes.

With dynamic threads (`OMP_DYNAMIC`, `omp_set_dynamic`) the runtime gives a parallel region fewer
threads when the machine is busy. A library that divides a sum among its threads then gives other
bits. The setting belongs to a thread.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def _find(
    name: str, *arguments: Any, result: Any = None, keeps_gil: bool = True
) -> Callable[..., Any] | None:
    """A function of the runtime; None if torch was built without it."""
    kind = ctypes.PyDLL if keeps_gil else ctypes.CDLL
    try:
        function: Any = getattr(kind(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")), name)
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = list(arguments), result
    return function  # type: ignore[no-any-return]


# Runs a C function in every thread: (function, its argument, number of threads, flags).
parallel = _find(
    "GOMP_parallel", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, keeps_gil=False
)
_get_dynamic = _find("omp_get_dynamic", result=ctypes.c_int)
_set_dynamic = _find("omp_set_dynamic", ctypes.c_int)


def has_dynamic_threads() -> bool:
    return _get_dynamic is not None and bool(_get_dynamic())


def set_dynamic_threads(value: bool) -> None:
    if _set_dynamic is not None:
        _set_dynamic(value)
