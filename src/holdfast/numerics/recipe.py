"""The recipe: how each kind of operation is computed, so that it gives the same bits for the same row.

It enters the fingerprint, so it holds all that decides bits on the backend's side and nothing else: no
thread count (no operation depends on it) and no cache path.
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
    """A canonical pass follows it to the letter; a fast pass of the library path may leave `rows` and
    `k_slices`."""

    path: (
        str  # "compiled": our kernels; "library": torch operations; "triton": our kernels and a GPU's library
    )
    rows: int  # rows of the reference pass; the library path multiplies in slabs of exactly so many
    k_slices: int  # slices along K, summed in order in fp32
    kv_block: int  # positions the running softmax takes at a time, from position 0
    query_tile: int  # rows of one attention tile in the library path; 0: a row does not feel its tile
    dtype: str  # "bfloat16", "float16", "float32"
    variant: str  # "neon", "avx2", "avx512", "amx-bf16"; "torch" or "torch-fp32" for the library path
    source: str = ""  # digest of the sources, and for the compiled path of flags and compiler
    products: str = (
        ""  # of the triton path, "NxK/S ...": the slices of K of each shape; 0: the library's own product
    )

    def as_dict(self) -> dict[str, str | int]:
        """Every field; `products` only where there are any, so that a CPU's recipe is what it always was."""
        return {name: value for name, value in asdict(self).items() if name != "products" or value}

    def digest(self) -> str:
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
