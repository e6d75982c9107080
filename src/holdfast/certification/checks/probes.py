"""Probe tokens among neighbours, and the comparison of bits on the device."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from holdfast.numerics.arrays import Device, Tensor, arrays_on
from holdfast.numerics.bits import bits_differ
from holdfast.numerics.ops import Backend

NUM_PROBES = 8  # among neighbours
DENSE_SEATING = 64  # in batches of up to so many tokens the probes are tried at several places

_BATCHES_AT_ONCE = 64  # of `run_full`, between two pauses
MAX_BATCHES = 64  # of one size: where probes are many, small sizes try a part of them
_SCALES = ((1e3, 1e-3), (1e3, 1e3), (1e-3, 1e-3))  # of the neighbours


@dataclass(frozen=True)
class ProbeBatch:
    """A batch of `size` tokens: which of them are probes, and which probe each is. The others are
    neighbours, scaled by the two scales in turn."""

    size: int
    seats: tuple[int, ...]
    probes: tuple[int, ...]
    scales: tuple[float, float]


def tested_sizes(backend: Backend, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return which of these sizes to test. If larger passes repeat the code of a block of rows, these are the
    sizes up to a block, the next one and the last."""
    block = backend.can.block_rows
    if block is None:
        return tuple(sizes)
    larger = [size for size in sizes if size > block]
    return tuple(size for size in sizes if size <= block or size in (larger[0], larger[-1]))


def canonical_sizes(backend: Backend, largest: int) -> tuple[int, ...]:
    """Return the sizes of canonical passes to test: multiples of the reference's size up to `largest`."""
    rows = backend.recipe.rows
    return tested_sizes(backend, range(rows, largest + 1, rows))


def run_full(
    operation: Callable[[Tensor], Tensor], probes: Tensor, size: int, max_batches: int | None = None
) -> Generator[None, None, tuple[Tensor, Tensor]]:
    """Run an operation on batches of `size` tokens that are all probes: as many batches as it takes
    for every probe to occur, or `max_batches`. Returns the results and which probe each row is: which
    probe is at which place depends on the size. Pauses after some batches."""
    num_batches = min(-(-len(probes) // size), max_batches or len(probes))
    xp = arrays_on(probes.device)
    order = (xp.arange(num_batches * size) + size) % len(probes)
    found = []
    for number, rows in enumerate(xp.split(order, size), 1):
        # In a pass a batch has memory of its own, which a library may choose its kernel by.
        found.append(operation(probes.index_select(0, rows)))
        if number % _BATCHES_AT_ONCE == 0:
            yield
    return xp.cat(found), order


def mixed_batches(size: int, num_probes: int) -> list[ProbeBatch]:
    """Return batches of a few probes among neighbours a thousand times larger or smaller. The probes are at
    the front, spread, and at the end; in large batches only spread, from the first token to the last."""
    count = min(NUM_PROBES, size - 1)
    if count < 1:
        return []
    probes = tuple((size + index) % num_probes for index in range(count))
    front, back = tuple(range(count)), tuple(range(size - count, size))
    spread = tuple(index * (size - 1) // max(1, count - 1) for index in range(count))
    places = [spread] if size > DENSE_SEATING else [front, spread, back]
    return [ProbeBatch(size, seats, probes, scales) for seats, scales in zip(places, _SCALES, strict=False)]


def plant(probes: Tensor, batch: ProbeBatch) -> Tensor:
    """Return the tokens of a batch, [size, width]."""
    planted = probes.index_select(0, _index(batch.probes, probes.device))
    neighbours = _neighbours(_round_up(batch.size), probes.shape[1], probes.device)[: batch.size].clone()
    neighbours[::2] *= batch.scales[0]
    neighbours[1::2] *= batch.scales[1]
    return neighbours.to(probes.dtype).index_copy_(0, _index(batch.seats, probes.device), planted)


def rows_at(batch: Tensor, at: tuple[int, ...]) -> Tensor:
    return batch.index_select(0, _index(at, batch.device))


@lru_cache(maxsize=8)
def _neighbours(num_tokens: int, width: int, device: Device) -> Tensor:
    xp = arrays_on(device)
    return xp.randn(num_tokens, width, generator=xp.generator(width))


@lru_cache(maxsize=4096)
def _index(at: tuple[int, ...], device: Device) -> Tensor:
    return arrays_on(device).tensor(at)


def clear_neighbours() -> None:
    """Free the cached batches of neighbours."""
    _neighbours.cache_clear()
    _index.cache_clear()


def _round_up(num_tokens: int) -> int:
    """To a power of two, so that a few cached batches serve all sizes."""
    return 1 << max(6, (num_tokens - 1).bit_length())


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
        self._arrays = arrays_on(found.device)
        self._differ.append(bits_differ(found, expected).any())
        self.num_comparisons += len(found)

    def labels(self) -> set[int]:
        if not self._differ:
            return set()
        differ = self._arrays.stack(self._differ).tolist()
        return {label for label, differs in zip(self._labels, differ, strict=True) if differs}
