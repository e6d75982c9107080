"""Probe tokens among neighbours, and the comparison of bits on the device."""

from functools import lru_cache

import torch
from torch import Tensor

NUM_PROBES = 8
DENSE_SEATING = 64  # batches of up to so many tokens are tried with several seatings

_AS_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def seatings(num_tokens: int) -> list[list[int]]:
    """Where the probes are in a batch: at the front, spread, at the end. Small batches hold fewer.

    In large batches they are only spread, from the first token to the last: a library chooses its
    order of summation by the size of the batch, and the choice shows at every place.
    """
    count = min(NUM_PROBES, num_tokens)
    front = list(range(count))
    back = list(range(num_tokens - count, num_tokens))
    spread = [index * (num_tokens - 1) // max(1, count - 1) for index in range(count)]
    if num_tokens > DENSE_SEATING:
        return [spread]
    return [front] if front == back else [front, spread, back]


def plant(probes: Tensor, num_tokens: int, at: list[int], scales: tuple[float, float]) -> Tensor:
    """A batch of random neighbours, scaled by the two scales in turn, and the probes in it."""
    batch = _neighbours(_round_up(num_tokens), probes.shape[1], probes.device)[:num_tokens].clone()
    batch[::2] *= scales[0]
    batch[1::2] *= scales[1]
    batch = batch.to(probes.dtype)
    return batch.index_copy_(0, _index(tuple(at), probes.device), probes)


def rows_at(batch: Tensor, at: list[int]) -> Tensor:
    return batch.index_select(0, _index(tuple(at), batch.device))


@lru_cache(maxsize=8)
def _neighbours(num_tokens: int, width: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(width)
    return torch.randn(num_tokens, width, generator=generator, device=device)


@lru_cache(maxsize=4096)
def _index(at: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(at, device=device)


def clear_neighbours() -> None:
    """Free the cached batches of neighbours."""
    _neighbours.cache_clear()
    _index.cache_clear()


def _round_up(num_tokens: int) -> int:
    """To a power of two, so that a few cached batches serve all sizes."""
    return 1 << max(6, (num_tokens - 1).bit_length())


def bits_of(tensor: Tensor) -> Tensor:
    """The same numbers as integers: -0 is not 0, and a NaN equals itself."""
    return tensor.contiguous().view(_AS_INTEGER[tensor.dtype.itemsize])


class Differences:
    """Which labels differ. Comparisons are enqueued on the device and read once, by `labels`."""

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
        return {label for label, differs in zip(self._labels, differ, strict=True) if differs}
