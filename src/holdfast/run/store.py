"""The tensors behind the pages. Its size is a memory budget; which page holds what is none of its business."""

import numpy as np
import torch
from torch import Tensor

from holdfast.arithmetic.rows import KVLayer
from holdfast.errors import ConfigError
from holdfast.models.config import DecoderConfig

PAGE_SIZE = 16


def page_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Keys and values of one page in every layer."""
    slot = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
    return config.num_layers * slot * PAGE_SIZE


def num_pages_in(budget: int, config: DecoderConfig, dtype: torch.dtype) -> int:
    """How many pages a budget in bytes holds."""
    num_pages = budget // page_bytes(config, dtype)
    if num_pages < 1:
        raise ConfigError(
            f"kv_memory of {budget} bytes does not hold one page of {PAGE_SIZE} positions, "
            f"which takes {page_bytes(config, dtype)} bytes for this model; raise kv_memory"
        )
    return num_pages


class KVStore:
    """Keys and values of every layer. A slot never written is zero, and costs no memory until its page is."""

    def __init__(self, num_pages: int, config: DecoderConfig, dtype: torch.dtype) -> None:
        heads, dim = config.num_kv_heads, config.head_dim
        try:
            self.layers = tuple(
                KVLayer(
                    keys=_untouched_zeros((num_pages, heads, dim, PAGE_SIZE), dtype),
                    values=_untouched_zeros((num_pages, heads, PAGE_SIZE, dim), dtype),
                )
                for _ in range(config.num_layers)
            )
        except MemoryError as error:
            total = num_pages * page_bytes(config, dtype)
            raise ConfigError(
                f"the KV cache of {total} bytes cannot be allocated; lower kv_memory"
            ) from error


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros the system hands out when they are first touched; torch.zeros would write all of them now."""
    return torch.from_numpy(np.zeros(shape, f"i{dtype.itemsize}")).view(dtype)
