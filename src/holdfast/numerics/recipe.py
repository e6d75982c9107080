"""The recipe: everything in a backend that decides the bits of a canonical pass.

It is part of the fingerprint, so it holds nothing that does not decide bits: no number of threads,
no cache directory, no digest of raw sources, and for C kernels no CPU and no compiler. `path` and `variant`
name it, `version` says which version of its code computes. Two machines with equal recipes compute equal
bits, if the recipe is one of C kernels. torch and cuBLAS choose their kernels by the device, so theirs
hold on one kind of device only (`depends_on_device`).
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

KernelBackend = Literal["auto", "c", "torch", "triton"]  # values of the option `kernels`
KERNEL_BACKENDS = get_args(KernelBackend)
PORTABLE = "portable"  # the variant of C kernels that every CPU computes with the same bits


@dataclass(frozen=True)
class Recipe:
    """How a backend computes.

    A fast pass of the torch backend may use other GEMM shapes than `rows` says.
    """

    path: str  # the backend: "c", "torch" or "triton"
    # Rows of a canonical GEMM: torch and Triton multiply in slabs of exactly this many.
    rows: int
    k_slices: int  # 1; the splits of Triton are in `products`
    kv_block: int  # positions per step of the online softmax, from position 0
    # Tokens per attention tile of the torch backend. 0: bits do not depend on the tile.
    query_tile: int
    dtype: str  # "bfloat16", "float16", "float32"
    # C: "portable", or "amx-bf16" if AMX multiplies. torch: "torch" or "torch-fp32", if it multiplies in
    # fp32. Triton: "cuda" or "interpreter".
    variant: str
    version: int  # of the backend's code
    # Triton: "NxK/S ...", the split-K factor of each GEMM; 0: the library's own GEMM.
    products: str = ""
    # C: the formats of weights that are kept in quantised blocks, "Q4_1+Q8_0". Activations are quantised
    # to int8 for their products.
    blocks: str = ""

    @property
    def depends_on_device(self) -> bool:
        """Return whether a library chooses the order of sums by the device. In C kernels the sources fix it:
        every reduction has a width and an order of its own, and the compiler may not contract or
        reassociate, whatever the CPU."""
        return self.path != "c"

    def as_dict(self) -> dict[str, str | int]:
        """Return all fields except empty texts."""
        return {name: value for name, value in asdict(self).items() if value != ""}

    def digest(self) -> str:
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
