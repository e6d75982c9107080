"""The recipe: everything in a backend that decides the bits of a canonical pass.

It is part of the fingerprint, so it holds nothing that does not decide bits: no number of threads,
no cache directory.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

KernelBackend = Literal["auto", "c", "torch", "triton"]  # values of the option `kernels`
KERNEL_BACKENDS = get_args(KernelBackend)
DEPRECATED_KERNELS = {"compiled": "c", "library": "torch"}  # accepted for one release


@dataclass(frozen=True)
class Recipe:
    """How a backend computes.

    A fast pass of the torch backend may use other GEMM shapes than `rows` and `k_slices` say.
    """

    path: str  # the backend: "c", "torch" or "triton"
    # Rows of a canonical GEMM: torch and Triton multiply in slabs of exactly this many.
    rows: int
    k_slices: int  # split-K factor of the torch backend; partial sums are added in order in fp32
    kv_block: int  # positions per step of the online softmax, from position 0
    # Tokens per attention tile of the torch backend. 0: bits do not depend on the tile.
    query_tile: int
    dtype: str  # "bfloat16", "float16", "float32"
    # C: "neon", "avx2", "avx512" or "amx-bf16". torch: "torch" or "torch-fp32", if it multiplies in
    # fp32. Triton: "cuda" or "interpreter".
    variant: str
    source: str = ""  # digest of the backend's sources; for C also of flags, compiler and CPU
    # Triton: "NxK/S ...", the split-K factor of each GEMM; 0: the library's own GEMM.
    products: str = ""

    def as_dict(self) -> dict[str, str | int]:
        """All fields, without an empty `products`."""
        return {name: value for name, value in asdict(self).items() if name != "products" or value}

    def digest(self) -> str:
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
