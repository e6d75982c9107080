"""Probe rows among neighbours, and the comparison of bits."""

import torch
from torch import Tensor

NUM_PROBES = 8

_AS_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def places(num_rows: int) -> list[list[int]]:
    """Several ways to seat the probes among so many rows: in front, spread, at the end. Fewer rows seat fewer probes."""
    count = min(NUM_PROBES, num_rows)
    front = list(range(count))
    back = list(range(num_rows - count, num_rows))
    spread = [index * (num_rows - 1) // max(1, count - 1) for index in range(count)] if count > 1 else [0]
    return [front] if front == back else [front, spread, back]


def plant(probes: Tensor, num_rows: int, at: list[int], scale: float) -> Tensor:
    """A batch of random neighbours of this scale with the probes at these rows."""
    generator = torch.Generator().manual_seed(num_rows)
    batch = (torch.randn(num_rows, probes.shape[1], generator=generator) * scale).to(probes.dtype)
    batch[at] = probes
    return batch


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit: -0 is not 0, and a NaN equals itself."""
    kind = _AS_INTEGER[a.dtype.itemsize]
    return bool(torch.equal(a.contiguous().view(kind), b.contiguous().view(kind)))
