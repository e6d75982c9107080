"""The tensors of the KV cache. Which page holds what is decided in `kv_cache`."""

import torch

from holdfast.errors import ConfigError
from holdfast.models.config import DecoderConfig
from holdfast.numerics.forward_batch import KVLayer
from holdfast.numerics.ops import Backend


def page_bytes(config: DecoderConfig, dtype: torch.dtype, page_size: int, *, extra: int = 0) -> int:
    """Return the bytes of one page: keys and values in every layer, and `extra` bytes a slot."""
    slot = config.num_layers * 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
    return (slot + extra) * page_size


def num_pages_in(
    budget: int, config: DecoderConfig, dtype: torch.dtype, page_size: int, *, extra: int = 0
) -> int:
    """Return how many pages fit in a budget of bytes."""
    one = page_bytes(config, dtype, page_size, extra=extra)
    num_pages = budget // one
    if num_pages < 1:
        raise ConfigError(
            f"kv_memory of {budget} bytes does not hold one page of {page_size} positions, "
            f"which takes {one} bytes for this model; raise kv_memory"
        )
    return num_pages


class KVStore:
    """Keys and values of all layers, in the backend's layout. Slots are zero until written. `all_layers`
    holds the pages of layer 0, then those of layer 1, and so on; `layers` are views of it."""

    def __init__(self, num_pages: int, config: DecoderConfig, backend: Backend) -> None:
        heads, dim = config.num_kv_heads, config.head_dim
        try:
            self.all_layers = backend.new_kv_layer(num_pages * config.num_layers, heads, dim)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise ConfigError(
                f"the KV cache of {num_pages} pages of {backend.page_size} positions cannot be allocated; lower kv_memory"
            ) from error
        self.num_pages = num_pages
        keys, values = self.all_layers.keys, self.all_layers.values
        starts = range(0, len(keys), num_pages)
        self.layers = tuple(KVLayer(keys[at : at + num_pages], values[at : at + num_pages]) for at in starts)
