"""KV pages in main memory, for the CPU backends."""

import numpy as np
import torch
from torch import Tensor

from holdfast.numerics.forward_batch import KVLayer

CPU_PAGE_SIZE = 16  # positions per page


def new_cpu_layer(num_pages: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVLayer:
    """Pages of zeros, which use no memory until they are written.

    Raises MemoryError if the system refuses.
    """
    return KVLayer(
        keys=untouched_zeros((num_pages, kv_heads, head_dim, CPU_PAGE_SIZE), dtype),
        values=untouched_zeros((num_pages, kv_heads, CPU_PAGE_SIZE, head_dim), dtype),
    )


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is allocated when it is first written; torch.zeros would write all of it
    now."""
    return torch.from_numpy(np.zeros(shape, f"i{dtype.itemsize}")).view(dtype)
