"""Probe rows among neighbours, and the comparison of bits. Everything stays on the device until it is asked for."""

from functools import lru_cache

import torch
from torch import Tensor

NUM_PROBES = 8
MANY_ROWS = 64

_AS_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    batch = _neighbours(_round_up(num_rows), probes.shape[1], probes.device)[:num_rows].clone()
    batch[::2] *= scales[0]
    batch[1::2] *= scales[1]
    batch = batch.to(probes.dtype)
    return batch.index_copy_(0, _index(tuple(at), probes.device), probes)


def rows_at(batch: Tensor, at: list[int]) -> Tensor:
    return batch.index_select(0, _index(tuple(at), batch.device))


@lru_cache(maxsize=8)
def _neighbours(num_rows: int, width: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(width)
    return torch.randn(num_rows, width, generator=generator, device=device)


@lru_cache(maxsize=4096)
def _index(at: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(at, device=device)


def forget_neighbours() -> None:
    """Give back the memory of the neighbours once everything is certified."""
    _neighbours.cache_clear()
    _index.cache_clear()


def _round_up(num_rows: int) -> int:
    """So that a few batches of neighbours serve all totals."""
    return 1 << max(6, (num_rows - 1).bit_length())


def bits_of(tensor: Tensor) -> Tensor:
    """The same numbers as integers: -0 is not 0, and a NaN equals itself."""
    return tensor.contiguous().view(_AS_INTEGER[tensor.dtype.itemsize])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit."""
    return bool(torch.equal(bits_of(a), bits_of(b)))


class Differences:
    """Which labels were seen to differ. Comparisons are gathered on the device and read once, when they are asked for."""

    def __init__(self) -> None:
        self._labels: list[int] = []
        self._differ: list[Tensor] = []  # each a bool on the device
        self.num_comparisons = 0

    def compare(self, label: int, found: Tensor, expected: Tensor) -> None:
        """Every row counts as one comparison."""
        assert found.shape == expected.shape
        self._labels.append(label)
        self._differ.append((bits_of(found) != bits_of(expected)).any())
        self.num_comparisons += len(found)

    def labels(self) -> set[int]:
        if not self._differ:
            return set()
        differ = torch.stack(self._differ).tolist()
        return {label for label, other in zip(self._labels, differ, strict=True) if other}
