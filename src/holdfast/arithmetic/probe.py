"""Probe rows among neighbours, and the comparison of bits."""

from functools import lru_cache

import torch
from torch import Tensor

NUM_PROBES = 8
MANY_ROWS = 64

_AS_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def places(num_rows: int) -> list[list[int]]:
    """Several ways to seat the probes among so many rows: in front, spread, at the end. Fewer rows seat fewer probes.

    Among many rows they are only spread, from the first row to the last: a total's bit class is the library's choice for
    that total, and shows wherever one looks.
    """
    count = min(NUM_PROBES, num_rows)
    front = list(range(count))
    back = list(range(num_rows - count, num_rows))
    spread = [index * (num_rows - 1) // max(1, count - 1) for index in range(count)]
    if num_rows > MANY_ROWS:
        return [spread]
    return [front] if front == back else [front, spread, back]


def plant(probes: Tensor, num_rows: int, at: list[int], scales: tuple[float, float]) -> Tensor:
    """A batch of random neighbours, of these scales in turn, with the probes at these rows."""
    batch = _neighbours(_round_up(num_rows), probes.shape[1])[:num_rows].clone()
    batch[::2] *= scales[0]
    batch[1::2] *= scales[1]
    batch = batch.to(probes.dtype)
    batch[at] = probes
    return batch


@lru_cache(maxsize=8)
def _neighbours(num_rows: int, width: int) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(width))


def forget_neighbours() -> None:
    """Give back the memory of the neighbours once everything is certified."""
    _neighbours.cache_clear()


def _round_up(num_rows: int) -> int:
    """So that a few batches of neighbours serve all totals."""
    return 1 << max(6, (num_rows - 1).bit_length())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit: -0 is not 0, and a NaN equals itself."""
    kind = _AS_INTEGER[a.dtype.itemsize]
    return bool(torch.equal(a.contiguous().view(kind), b.contiguous().view(kind)))
