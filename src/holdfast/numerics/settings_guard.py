"""A guard around every build and every step: what could change a bit outside our code is ours inside it.

C kernels read the floating-point environment of their threads and nothing else, so on arrays of numpy the
guard sets that. Where torch computes, its settings are ours as well (`backends/torch/settings_guard.py`).
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.numerics.arrays import HOST, Device

DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1).value or 0  # FE_DFL_ENV of glibc
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def function_of(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """Return a C function; None if the library does not have it."""
    function = getattr(library, name, None)
    if function is not None:
        function.argtypes = list(arguments)
    return function


def _find_fesetenv() -> Any:
    """Python has no access to the floating-point environment. None if this is not glibc on a CPU we know."""
    if platform.machine() not in ("x86_64", "aarch64") or platform.libc_ver()[0] != "glibc":
        return None
    # PyDLL keeps the GIL: a call takes less time than releasing it.
    return function_of(ctypes.PyDLL(None), "fesetenv", ctypes.c_void_p)


# Operands and product in fp32, as bits. Flushed operand, flushed result, a product above and one
# below a representable number, each of both signs: every other environment changes at least one.
_PRODUCTS = (
    (0x00000001, 0x3F800000, 0x00000001),
    (0x0D800000, 0x30800000, 0x00080000),
    (0x3F800001, 0x3F800001, 0x3F800002),
    (0x3FC00000, 0x3F800001, 0x3FC00002),
)
fesetenv = _find_fesetenv()
_num_threads: int | None = None  # of every guard; None: not decided yet


def enter_default_environment() -> None:
    """Let the calling thread round to nearest and keep subnormal numbers. A new thread inherits what its
    creator does, so a thread that enters before it starts OpenMP workers has them do so, too."""
    if fesetenv is not None:
        fesetenv(DEFAULT_ENVIRONMENT)
    elif "torch" in sys.modules:  # nothing else is known to flush
        sys.modules["torch"].set_flush_denormal(False)


def signed_products() -> NDArray[np.int32]:
    """Return left, right and product of numbers whose product another environment changes, as bits: [n, 3]."""
    numbers = np.array(_PRODUCTS, np.int64)
    negative = numbers - np.array([1 << 31, 0, 1 << 31])
    signed: NDArray[np.int32] = np.concatenate((numbers, negative)).astype(np.uint32).view(np.int32)
    return signed


def _computes_by_default() -> bool:
    left, right, expected = np.ascontiguousarray(signed_products().T)
    return bool((np.multiply(left.view(np.float32), right.view(np.float32)).view(np.int32) == expected).all())


def decide_num_threads(wanted: int | None, device: Device = HOST) -> int:
    """Return the number of threads of every guard: the first one wanted, or that of the machine."""
    global _num_threads
    if _num_threads is None:
        _num_threads = _default_num_threads(device) if wanted is None else wanted
    return _num_threads


def _default_num_threads(device: Device) -> int:
    """Return OMP_NUM_THREADS, or one thread for each core that this process may run on; torch's own default
    where it computes."""
    if device is not HOST:
        import torch

        return torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isdigit() and int(given) > 0:
        return int(given)
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    try:
        return len({Path(_SIBLINGS.format(number)).read_text() for number in processors})
    except OSError:
        return len(processors)


@contextmanager
def our_settings(device: Device) -> Iterator[None]:
    """Enter it in the thread that computes. Guards may be nested."""
    if device is HOST:
        enter_default_environment()
        with np.errstate(all="ignore"):  # infinite and undefined numbers are found where they matter
            if fesetenv is None and not _computes_by_default():
                raise ConfigError(
                    "this thread flushes subnormal numbers to zero or rounds in another way, and this system has no "
                    "way to reset it; start a new process"
                )
            yield
        return
    from holdfast.numerics.backends.torch import settings_guard

    with settings_guard.our_settings(device):
        yield


def without_contexts(device: Device) -> AbstractContextManager[object]:
    """Switch off what changes torch's operations in this context, until what is returned is left."""
    if device is HOST:
        return nullcontext()
    from holdfast.numerics.backends.torch import settings_guard

    return settings_guard.without_contexts()
