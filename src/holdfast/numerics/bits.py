"""Comparison of tensors bit by bit."""

import torch
from torch import Tensor

_AS_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: Tensor) -> Tensor:
    """Return the same numbers as integers, in the same memory: -0 is not 0, and a NaN equals itself."""
    return tensor.view(_AS_INTEGER[tensor.dtype.itemsize])


def bits_differ(one: Tensor, other: Tensor) -> Tensor:
    """Return whether each element differs in a bit. All NaN are equal: nothing is promised for them."""
    differ = bits_of(one) != bits_of(other)
    return differ & ~(one.isnan() & other.isnan()) if one.is_floating_point() else differ
