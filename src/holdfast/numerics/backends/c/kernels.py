"""The built kernels as Python callables, loaded once per process.

Where torch is imported before, the kernels use its OpenMP runtime and there is one thread pool, not two.
"""

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from holdfast.errors import ConfigError
from holdfast.numerics.arrays import DType, Tensor, dtype_name
from holdfast.numerics.backends.c.build import Built, build
from holdfast.numerics.backends.c.prebuilt import find_prebuilt

# Arguments in the order of kernels.h. p: pointer, i: int64, d: double; 8 bytes each.
_SIGNATURES = {
    "pack": "ppiiiii",
    "linear": "ppippiiiiii",
    "rms_norm": "ppipiiidiiii",
    "add_rms_norm": "ppppp" + "iiiiii" + "dd",
    "rope": "piipiippiiii",
    "activation_mul": "ppiiiii",
    "swiglu_mul": "ppiiddii",
    "soft_cap": "pidi",
    "exp": "pii",
    "store_kv": "pppipipiiiiii",
    "attention": "ppipppppp" + "iiiiiii" + "ddiii",
    "block_pack": "ppiiii",
    "block_linear": "ppippiiiiii",
    "block_rows": "pppiiii",
    "packed_rows": "pppiii",
    "block_reference": "ppippiiiiii",
    "recurrence": "p" * 10 + "i" * 14 + "ddd" + "pi",
    "short_conv": "p" * 10 + "i" * 14 + "ddd" + "pi",
    "gated_norm": "pppp" + "i" * 7 + "di",
    "sigmoid_mul": "pppiiiii",
    "thread_ids": "pi",
    "layers": "pppi" + "p" * 8 + "i" * 13 + "dddd" + "pii",
    "sample": "ppiippppppi",
    "logsumexp": "ppiii",
    "greedy": "pppiii",
    "topk": "pppiiii",
    "noise": "piii",
}
_PAUSE_SOFT = 1  # of OpenMP: keeps what the program has set
_WORDS = str.maketrans("pid", "qqd")
_VARIANTS = {4: "neon", 8: "avx2", 16: "avx512"}


class _Codes(dict[DType, int]):
    """The dtypes in simd.h, of any library of arrays."""

    def __missing__(self, dtype: DType) -> int:
        code = self[dtype] = {"float32": 0, "bfloat16": 1, "float16": 2}[dtype_name(dtype)]
        return code


CODES = _Codes()


def is_fp32(array: Tensor) -> bool:
    return array.dtype.itemsize == 4 and CODES[array.dtype] == 0


def address(array: Tensor | None) -> int:
    return 0 if array is None else array.data_ptr()


@dataclass(frozen=True)
class CKernels:
    """The functions of the library.

    They do not check their arguments; only `backend.py` calls them.
    """

    built: Built
    variant: str
    has_amx: bool
    block_form: str  # the instructions of the products with quantised blocks
    packed_bytes: Callable[[int, int, int], int]
    block_bytes: Callable[[int, int, int], int]
    run: SimpleNamespace  # the functions of _SIGNATURES, by name
    end_pool: Callable[[], None] | None  # ends the threads of the caller's pool, where OpenMP can


def _bind(function: Any, signature: str) -> Callable[..., None]:
    """Pass the arguments as one packed array: ctypes takes a third of the time of single arguments."""
    function.argtypes, function.restype = [ctypes.c_char_p], None
    pack = struct.Struct(signature.translate(_WORDS)).pack

    def call(*values: float) -> None:
        function(pack(*values))

    return call


@functools.lru_cache(maxsize=1)
def load_kernels() -> CKernels:
    """Load the kernels: prebuilt ones, or built now. Raises ConfigError with the reason if that fails."""
    return bind_kernels(find_prebuilt() or build())


def has_c_kernels() -> bool:
    """Return whether the C kernels can be loaded or built."""
    try:
        load_kernels()
    except ConfigError:
        return False
    return True


def bind_kernels(built: Built) -> CKernels:
    """Load a built library."""
    try:
        library = ctypes.CDLL(str(built.path))
    except OSError as error:
        advice = "; install libgomp (the package libgomp1)" if "libgomp" in str(error) else ""
        raise ConfigError(
            f"the built kernels could not be loaded from {built.path}: {error}{advice}"
        ) from error
    functions = {name: _bind(library[f"holdfast_{name}"], form) for name, form in _SIGNATURES.items()}
    packed_bytes, block_bytes = library["holdfast_packed_bytes"], library["holdfast_block_bytes"]
    for each in (packed_bytes, block_bytes):
        each.argtypes, each.restype = [ctypes.c_int64] * 3, ctypes.c_int64
    block_form = library["holdfast_block_form"]
    block_form.restype = ctypes.c_char_p
    variant = _VARIANTS[int(library["holdfast_vector_width"]())]
    has_amx = bool(library["holdfast_has_amx"]())
    form = str(block_form(), "ascii")
    run = SimpleNamespace(**functions)
    return CKernels(built, variant, has_amx, form, packed_bytes, block_bytes, run, _end_pool(library))


def _end_pool(library: ctypes.CDLL) -> Callable[[], None] | None:
    """Return what ends the threads that wait for the caller's next region; None before OpenMP 5.0."""
    pause = getattr(library, "omp_pause_resource_all", None)
    return None if pause is None else functools.partial(pause, _PAUSE_SOFT)
