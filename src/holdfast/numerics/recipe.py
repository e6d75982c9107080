"""The recipe: everything in a backend that decides the bits of a canonical pass.

It is part of the fingerprint, so it holds nothing that does not decide bits: no number of threads, no cache directory.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

KernelBackend = Literal["auto", "c", "torch", "triton"]  # the values of the option `kernels`
KERNEL_BACKENDS = get_args(KernelBackend)
DEPRECATED_KERNELS = {"compiled": "c", "library": "torch"}  # former values, accepted for one release


@dataclass(frozen=True)
class Recipe:
    """How a backend computes. A fast pass of the torch backend may use other GEMM shapes than `rows` and `k_slices` say."""

    path: str  # the backend: "c", "torch" or "triton"
    rows: (
        int  # rows of a canonical GEMM; the torch and Triton backends multiply in slabs of exactly this many
    )
    k_slices: int  # split-K factor of the torch backend; partial sums are added in order in fp32
    kv_block: int  # positions per step of the online softmax, from position 0
    query_tile: (
        int  # tokens of an attention tile of the torch backend; 0: a token's bits do not depend on its tile
    )
    dtype: str  # "bfloat16", "float16", "float32"
    variant: str  # c: "neon", "avx2", "avx512", "amx-bf16"; torch: "torch", "torch-fp32"; triton: "cuda", "interpreter"
    source: str = ""  # digest of the backend's sources; for C also of flags, compiler and CPU
    products: str = (
        ""  # of the Triton backend, "NxK/S ...": the split-K factor of each GEMM; 0: the library's own GEMM
    )

    def as_dict(self) -> dict[str, str | int]:
        """All fields, without an empty `products`."""
        return {name: value for name, value in asdict(self).items() if name != "products" or value}

    def digest(self) -> str:
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
