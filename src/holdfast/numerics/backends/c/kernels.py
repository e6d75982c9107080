"""The built kernels as Python callables: one table of signatures, loaded once a process.

torch is imported first, so that its own OpenMP runtime is the one the kernels share: one pool of threads,
not two.
"""

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch  # noqa: F401  (its libgomp must be loaded before the kernels ask for one)

from holdfast.errors import ConfigError
from holdfast.numerics.backends.c.build import Built, build

# Arguments in the order of kernels.h. p: pointer, i: int64, d: double; eight bytes each.
_SIGNATURES = {
    "pack": "ppiiiii",
    "linear": "ppippiiiiii",
    "rms_norm": "ppipiiidii",
    "add_rms_norm": "ppppiidii",
    "rope": "piipiippiiii",
    "silu_mul": "ppiiii",
    "store": "pppipipiiiiii",
    "attention": "ppippppp" + "iiiiiii" + "diii",
    "layer": "p" * 22 + "i" * 12 + "dd",
    "choose": "ppiippppppi",
    "logsumexp": "ppiii",
    "top": "pppiiii",
    "noise": "piii",
}
_WORDS = str.maketrans("pid", "qqd")
_LANES_NAMES = {4: "neon", 8: "avx2", 16: "avx512"}


@dataclass(frozen=True)
class Kernels:
    """The functions of the library. A wrong address crashes: only `operations.py` calls
    them."""

    built: Built
    variant: str
    has_amx: bool
    packed_bytes: Callable[[int, int, int], int]
    pack: Callable[..., None]
    linear: Callable[..., None]
    rms_norm: Callable[..., None]
    add_rms_norm: Callable[..., None]
    rope: Callable[..., None]
    silu_mul: Callable[..., None]
    store: Callable[..., None]
    attention: Callable[..., None]
    layer: Callable[..., None]
    choose: Callable[..., None]
    logsumexp: Callable[..., None]
    top: Callable[..., None]
    noise: Callable[..., None]


def _caller(function: Any, signature: str) -> Callable[..., None]:
    """Arguments go as one block of words: a third of what ctypes takes to convert them one by one."""
    function.argtypes, function.restype = [ctypes.c_char_p], None
    pack = struct.Struct(signature.translate(_WORDS)).pack

    def call(*values: float) -> None:
        function(pack(*values))

    return call


@functools.lru_cache(maxsize=1)
def load_kernels() -> Kernels:
    """Builds and loads the kernels. Raises ConfigError with the reason when that is not possible."""
    built = build()
    try:
        library = ctypes.CDLL(str(built.path))
    except OSError as error:
        raise ConfigError(f"the built kernels could not be loaded from {built.path}: {error}") from error
    functions: dict[str, Any] = {}
    for name, signature in _SIGNATURES.items():
        functions[name] = _caller(library[f"holdfast_{name}"], signature)
    packed_bytes = library["holdfast_packed_bytes"]
    packed_bytes.argtypes, packed_bytes.restype = [ctypes.c_int64] * 3, ctypes.c_int64
    variant = _LANES_NAMES[int(library["holdfast_vector_lanes"]())]
    has_amx = bool(library["holdfast_has_amx"]())
    return Kernels(built, variant, has_amx, packed_bytes, **functions)
