"""The floating-point environment of a thread and of its OpenMP workers, and their number.

Rounding mode and flushing of subnormal numbers belong to a thread, and a new thread inherits those of
its creator. So a pool of OpenMP workers keeps the environment of the thread that computed first. Python
has no access to it; glibc's `fegetenv` and `fesetenv` are called by ctypes. Without glibc, or on another
CPU, Python arithmetic tells the state and torch can only switch the flushing.

With dynamic threads (`OMP_DYNAMIC`, `omp_set_dynamic`) the OpenMP runtime gives a parallel region fewer
threads when the machine is busy. A library that divides a sum among its threads then gives other bits.
The setting belongs to a thread.
"""

import ctypes
import platform
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from holdfast.errors import ConfigError

_DEFAULT = ctypes.c_void_p(-1).value or 0  # FE_DFL_ENV
_GRAIN = 32768  # elements for which torch engages one more thread

# Operands and product in fp32, as bits. Flushed operand, flushed result, a product above and one
# below a representable number, each of both signs: every other mode changes at least one.
_PRODUCTS = (
    (0x00000001, 0x3F800000, 0x00000001),
    (0x0D800000, 0x30800000, 0x00080000),
    (0x3F800001, 0x3F800001, 0x3F800002),
    (0x3FC00000, 0x3F800001, 0x3FC00002),
)
_SIGN = 0x80000000
# The same for Python's own arithmetic. Variables, because constants are folded when compiled.
_TINY, _ONE, _HALF_ULP, _MOST_ULP = 5e-324, 1.0, 2.0**-53, 3 * 2.0**-54


class _Field(NamedTuple):
    """A control word of fenv_t, in words of 32 bits, and its default under a mask."""

    word: int
    mask: int
    default: int


_LAYOUT = {
    # x87 precision and rounding; MXCSR: flush-to-zero, rounding, denormals-are-zero
    "x86_64": (_Field(0, 0x0F00, 0x0300), _Field(7, 0xE040, 0)),
    # FPCR: flushing, rounding, default NaN, alternative half precision, traps
    "aarch64": (_Field(0, 0xFFFFFFFF, 0),),
}


class Libc(NamedTuple):
    """The two functions of glibc, and where this CPU has its control words."""

    fegetenv: Callable[[int], int]
    fesetenv: Callable[[int], int]
    address: int  # of fesetenv, to be called by other threads
    layout: tuple[_Field, ...]


def find_libc() -> Libc | None:
    layout = _LAYOUT.get(platform.machine())
    if layout is None or platform.libc_ver()[0] != "glibc":
        return None
    libc = ctypes.PyDLL(None)  # keeps the GIL: a call takes less time than releasing it
    try:
        fegetenv, fesetenv = libc.fegetenv, libc.fesetenv
    except AttributeError:
        return None
    for function in (fegetenv, fesetenv):
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    address = ctypes.cast(fesetenv, ctypes.c_void_p).value
    return None if address is None else Libc(fegetenv, fesetenv, address, layout)


def _openmp(name: str, *arguments: Any, result: Any = None, keeps_gil: bool = True) -> Any:
    """A function of the OpenMP runtime that torch uses; None if torch was built without it."""
    kind = ctypes.PyDLL if keeps_gil else ctypes.CDLL
    try:
        function = getattr(kind(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")), name)
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = list(arguments), result
    return function


# Runs a C function in every thread: (function, its argument, number of threads, flags).
parallel = _openmp(
    "GOMP_parallel", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, keeps_gil=False
)
_get_dynamic = _openmp("omp_get_dynamic", result=ctypes.c_int)
_set_dynamic = _openmp("omp_set_dynamic", ctypes.c_int)


def has_dynamic_threads() -> bool:
    return _get_dynamic is not None and bool(_get_dynamic())


def set_dynamic_threads(value: bool) -> None:
    if _set_dynamic is not None:
        _set_dynamic(value)


class _Buffer(threading.local):
    """Memory for fenv_t, one per thread."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(64)
        self.address = ctypes.addressof(self.memory)
        self.words = memoryview(self.memory).cast("B").cast("I")


_libc = find_libc()
_buffer = _Buffer()

Saved = bytes | bool  # an fenv_t; without glibc, that torch flushed subnormal numbers


def enter_default() -> Saved | None:
    """Give the calling thread the default environment: round to nearest, no flushing.

    Returns what `restore` needs; None if the environment was the default one. Raises ConfigError
    if it cannot be set.
    """
    if _libc is None:
        return _enter_default_by_torch()
    _libc.fegetenv(_buffer.address)
    words = _buffer.words
    for word, mask, default in _libc.layout:
        if words[word] & mask != default:
            saved = _buffer.memory.raw
            _libc.fesetenv(_DEFAULT)
            return saved
    return None


def restore(saved: Saved) -> None:
    """Give the calling thread back the environment it had."""
    if isinstance(saved, bytes):
        assert _libc is not None
        memory = ctypes.create_string_buffer(saved)
        _libc.fesetenv(ctypes.addressof(memory))
    else:
        torch.set_flush_denormal(saved)


def reset_workers(num_threads: int) -> bool:
    """Give the calling thread's OpenMP workers the default environment.

    Returns False where that is not possible: the OpenMP runtime or the C library is another one.
    """
    if _libc is None or parallel is None:
        return False
    parallel(_libc.address, _DEFAULT, num_threads, 0)
    return True


def check_workers(num_threads: int) -> None:
    """Multiply subnormal and rounded numbers in all of torch's threads.

    Raises ConfigError if a thread flushes or rounds differently.
    """
    signed = [
        (left ^ sign, right, product ^ sign) for left, right, product in _PRODUCTS for sign in (0, _SIGN)
    ]
    left, right, expected = (
        torch.tensor([_as_int32(bits) for bits in column], dtype=torch.int32)
        for column in zip(*signed, strict=True)
    )
    count = 2 * num_threads * _GRAIN // len(signed)
    found = left.view(torch.float32).repeat(count) * right.view(torch.float32).repeat(count)
    if not torch.equal(found.view(torch.int32), expected.repeat(count)):
        raise ConfigError(
            "a thread of torch's thread pool flushes subnormal numbers to zero or rounds in another way "
            "(torch.set_flush_denormal or fesetround was in effect when it started), and this system has no way to "
            "reset it; start a new process, and do not switch it on before the engine is built"
        )


def _as_int32(bits: int) -> int:
    return bits - (1 << 32) if bits & _SIGN else bits


def is_flushing() -> bool:
    """Whether Python arithmetic in this thread takes subnormal numbers for zero."""
    return _TINY * _ONE == 0.0


def is_rounding_to_nearest() -> bool:
    """Whether Python arithmetic in this thread rounds to nearest, ties to even."""
    return (
        _ONE + _HALF_ULP == _ONE
        and -_ONE - _HALF_ULP == -_ONE
        and _ONE + _MOST_ULP > _ONE
        and -_ONE - _MOST_ULP < -_ONE
    )


def _enter_default_by_torch() -> bool | None:
    flushes = is_flushing()
    if flushes:
        torch.set_flush_denormal(False)
    if is_flushing() or not is_rounding_to_nearest():
        raise ConfigError(
            "this thread flushes subnormal numbers to zero or does not round to nearest, and this system has no way "
            "to reset it; call torch.set_flush_denormal(False) and restore the rounding mode"
        )
    return True if flushes else None
