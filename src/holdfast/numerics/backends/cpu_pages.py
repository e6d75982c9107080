"""KV pages in main memory, for the CPU backends."""

import mmap
import sys
from contextlib import suppress
from math import prod

import numpy as np
import torch
from torch import Tensor

from holdfast.numerics.forward_batch import KVLayer

CPU_PAGE_SIZE = 16  # positions per page
_MAPPED_BYTES = 1 << 22
_MAPPED_WEIGHT_BYTES = 1 << 16


def new_cpu_layer(num_pages: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVLayer:
    """Pages of zeros, which use no memory until they are written.

    Raises MemoryError if the system refuses.
    """
    return KVLayer(
        keys=untouched_zeros((num_pages, kv_heads, head_dim, CPU_PAGE_SIZE), dtype),
        values=untouched_zeros((num_pages, kv_heads, CPU_PAGE_SIZE, head_dim), dtype),
    )


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is allocated when it is first written, in the system's small pages.

    torch.zeros would write all of it now. numpy asks for huge pages: one request, with a few tokens in
    every layer, would make 2 MiB of each layer resident.
    """
    num_bytes = prod(shape) * dtype.itemsize
    if sys.platform != "linux" or num_bytes < _MAPPED_BYTES:
        return torch.from_numpy(np.zeros(shape, f"i{dtype.itemsize}")).view(dtype)
    return torch.frombuffer(_map_zeros(num_bytes), dtype=dtype).view(shape)


def _map_zeros(num_bytes: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{num_bytes} bytes cannot be allocated: {error}") from error
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def new_bytes(num_bytes: int) -> Tensor:
    """Memory for packed weights, uint8 [num_bytes], mapped by itself: it takes no more than its size,
    and goes back to the system when it is freed, where torch's allocator keeps memory."""
    if sys.platform != "linux" or num_bytes < _MAPPED_WEIGHT_BYTES:
        return torch.empty(num_bytes, dtype=torch.uint8)
    return torch.frombuffer(_map_zeros(num_bytes), dtype=torch.uint8)
