"""A number for the bits of a row of logits: the same in any order of summation, another if any one bit is another.

Each bit pattern is multiplied by an odd number of its place, modulo 2^32; the products are summed two by two, modulo
2^64. An odd factor loses no bit, and factors that differ keep small differences of opposite sign from cancelling.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


def checksums(logits: Tensor) -> Tensor:
    """One number a row of logits, contiguous fp32 [rows, vocab]: int64 [rows], on their device."""
    products = logits.view(torch.int32) * _factors(logits.shape[1], logits.device)  # [rows, vocab]
    if products.shape[1] % 2:
        products = F.pad(products, (0, 1))
    return products.view(torch.int64).sum(1)


@lru_cache(maxsize=4)
def _factors(count: int, device: torch.device) -> Tensor:
    """Odd int32 numbers that look random, [count]."""
    places = torch.arange(1, count + 1, dtype=torch.int64)
    mixed = (places * 0x9E3779B1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA6B) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 13)) | 1).to(torch.int32).to(device)
