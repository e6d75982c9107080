"""Pages of keys and values in main memory, for the paths of the backend that run on the CPU."""

import numpy as np
import torch
from torch import Tensor

from holdfast.numerics.forward_batch import KVLayer

CPU_PAGE_SIZE = 16  # positions a page


def new_cpu_layer(num_pages: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVLayer:
    """Zeros; a page costs no memory until it is written. Raises MemoryError where the system refuses."""
    return KVLayer(
        keys=untouched_zeros((num_pages, kv_heads, head_dim, CPU_PAGE_SIZE), dtype),
        values=untouched_zeros((num_pages, kv_heads, CPU_PAGE_SIZE, head_dim), dtype),
    )


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros the system hands out when they are first touched; torch.zeros would write all of them now."""
    return torch.from_numpy(np.zeros(shape, f"i{dtype.itemsize}")).view(dtype)
