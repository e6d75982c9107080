"""What the C and the torch backend share: pages and weights in main memory, and no device that only
knows a part of what the host knows."""

import mmap
import sys
from collections.abc import Iterable
from contextlib import suppress
from math import prod

import numpy as np

from holdfast.numerics.arrays import Device, DType, Tensor, arrays_on
from holdfast.numerics.experts import ExpertLinears, combine, route, run_experts
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer, StateLayer
from holdfast.numerics.layer import run_layer, run_layers
from holdfast.numerics.ops import Linear
from holdfast.numerics.recurrence import StateShape

_MAPPED_BYTES = 1 << 22
_MAPPED_WEIGHT_BYTES = 1 << 16


class CpuBackend:
    """The operations of `Backend` that both CPU backends have in the same form."""

    device: Device
    page_size = 16
    split_pages = 0
    dtype: DType
    layer = run_layer
    layers = run_layers
    experts = run_experts
    route = route
    combine = staticmethod(combine)

    def new_kv_layer(self, num_pages: int, kv_heads: int, head_dim: int) -> KVLayer:
        """Return pages of zeros, which use no memory until they are written.

        Raises MemoryError if the system refuses.
        """
        return KVLayer(
            keys=untouched_zeros((num_pages, kv_heads, head_dim, self.page_size), self.dtype, self.device),
            values=untouched_zeros((num_pages, kv_heads, self.page_size, head_dim), self.dtype, self.device),
        )

    def new_state_layer(self, num_slots: int, log_len: int, shape: StateShape) -> StateLayer:
        """Return slots of zeros, which use no memory until they are written."""
        fp32 = arrays_on(self.device).float32
        return StateLayer(
            state=untouched_zeros((num_slots, *shape.state_shape), fp32, self.device),
            log=untouched_zeros((num_slots, log_len, shape.log_width), self.dtype, self.device),
        )

    def tile_tokens(self, span_len: int, group: int) -> int:
        return 0

    def prepare(self, batch: ForwardBatch, heads: int, kv_heads: int) -> ForwardBatch:
        return batch

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        raise NotImplementedError

    def pack_experts(self, weights: Iterable[tuple[Tensor, Tensor | None]], count: int) -> ExpertLinears:
        return ExpertLinears(tuple(self.pack(*one) for one in weights))

    def expert_forms(self, w: Linear) -> tuple[Linear, ...]:
        return ()

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor:
        return table.index_select(0, token_ids.clamp(min=0))

    def new_token_history(self, num_pages: int) -> None:
        return None


def untouched_zeros(shape: tuple[int, ...], dtype: DType, device: Device) -> Tensor:
    """Zeros whose memory is allocated when it is first written, in the system's small pages.

    Zeros of torch are written now. numpy asks for huge pages: one request, with a few tokens in
    every layer, would make 2 MiB of each layer resident.
    """
    num_bytes = prod(shape) * dtype.itemsize
    is_mapped = sys.platform == "linux" and num_bytes >= _MAPPED_BYTES
    integers = f"i{dtype.itemsize}"
    zeros = np.frombuffer(_map_zeros(num_bytes), integers) if is_mapped else np.zeros(prod(shape), integers)
    return arrays_on(device).from_numpy(zeros).view(dtype).view(shape)


def _map_zeros(num_bytes: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{num_bytes} bytes cannot be allocated: {error}") from error
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def new_bytes(num_bytes: int, device: Device) -> Tensor:
    """Memory for packed weights, uint8 [num_bytes], mapped by itself: it takes no more than its size,
    and goes back to the system when it is freed, where an allocator keeps memory."""
    is_mapped = sys.platform == "linux" and num_bytes >= _MAPPED_WEIGHT_BYTES
    memory = np.frombuffer(_map_zeros(num_bytes), np.uint8) if is_mapped else np.empty(num_bytes, np.uint8)
    return arrays_on(device).from_numpy(memory)
