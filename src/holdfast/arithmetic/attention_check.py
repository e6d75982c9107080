"""Whether attention gives a row the same bits however it is batched: alone, in a window, in a chunk, in any pages."""

from typing import Protocol

import torch
from torch import Tensor

from holdfast.arithmetic.certificate import OperationCheck
from holdfast.arithmetic.ops import Arithmetic
from holdfast.arithmetic.probe import same_bits
from holdfast.arithmetic.rows import KVLayer, Rows

_SHORT_WINDOW = 40  # shorter than the probe's context, so that it is felt


class AttentionGeometry(Protocol):
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def window(self) -> int | None: ...


def check_attention(
    arithmetic: Arithmetic, geometry: AttentionGeometry, sizes: tuple[int, ...], *, name: str
) -> OperationCheck:
    """One sequence's rows, computed as the reference computes them, then inside passes of every size."""
    windows = [None] if geometry.window is None else [None, min(geometry.window, _SHORT_WINDOW)]
    found = [_check_window(arithmetic, geometry, sizes, window) for window in windows]
    shape = f"{geometry.heads} heads, {geometry.kv_heads} kv, {geometry.head_dim}"
    differing = set().union(*(differing for differing, _ in found))
    return OperationCheck(name, shape, sizes, tuple(sorted(differing)), sum(count for _, count in found))


def _check_window(
    arithmetic: Arithmetic, geometry: AttentionGeometry, sizes: tuple[int, ...], window: int | None
) -> tuple[set[int], int]:
    """The sizes that differ, and how many rows were compared. 0: the reference does, or a pass of any size may."""
    bench = _Bench(arithmetic, geometry, window)
    reference = bench.reference()  # [context, heads * head_dim]
    rows = arithmetic.recipe.rows
    differing = set() if bench.repeats(reference) else {0}
    comparisons = bench.context
    # A canonical pass has a multiple of the reference's rows, certified or not: one that differs is the reference's fault.
    for size in sorted({*sizes, *range(rows, max(sizes) + 1, rows)}):
        agreed, compared = bench.agrees(size, reference)
        comparisons += compared
        if not agreed:
            differing |= {size, 0} if size % rows == 0 else {size}
    # Padding adds no sequence, so a pass of any size may hold any number of them, and of any mixture.
    for count in range(1, 2 * rows + 1):
        agreed, compared = bench.decodes(count, reference)
        comparisons += compared
        differing |= set() if agreed else {0}
    return differing | (set() if bench.mixes(reference) else {0}), comparisons


class _Bench:
    """A probe sequence and one neighbour, in a small KV store of their own."""

    def __init__(self, arithmetic: Arithmetic, geometry: AttentionGeometry, window: int | None) -> None:
        self._arithmetic, self._geometry, self._window = arithmetic, geometry, window
        self.context = min(geometry.max_context, 9 * geometry.page_size + 5)
        generator = torch.Generator().manual_seed(5)
        dtype = getattr(torch, arithmetic.recipe.dtype)
        heads, kv_heads, dim = geometry.heads, geometry.kv_heads, geometry.head_dim

        def random(count: int) -> Tensor:
            return torch.randn(self.context, count, dim, generator=generator).to(dtype)

        self._q, self._k, self._v = random(heads), random(kv_heads), random(kv_heads)
        self._num_pages = -(-self.context // geometry.page_size)
        self._order = torch.randperm(self._num_pages, generator=generator).tolist()

    def reference(self) -> Tensor:
        """The sequence in chunks of the reference's rows, in pages in order."""
        rows = self._arithmetic.recipe.rows
        return self._chunked(rows, list(range(self._num_pages)))

    def repeats(self, reference: Tensor) -> bool:
        """The same chunks in shuffled pages."""
        return same_bits(self._chunked(self._arithmetic.recipe.rows, self._order), reference)

    def agrees(self, size: int, reference: Tensor) -> tuple[bool, int]:
        """As a chunk of `size` rows at the sequence's end, and as one of `size` decoding rows."""
        layer = self._store(self._order)
        chunk = min(size, self.context)
        last = self._pass(layer, [(self.context - chunk, self.context)], self._order, padding=size - chunk)
        decoded, compared = self.decodes(size, reference)
        return decoded and same_bits(last[:chunk], reference[-chunk:]), chunk + compared

    def decodes(self, count: int, reference: Tensor) -> tuple[bool, int]:
        """As so many single rows, each a sequence of its own."""
        starts = [(self.context - 1 - 7 * row % self.context) for row in range(count)]
        spans = [(start, start + 1) for start in starts]
        out = self._pass(self._store(self._order), spans, self._order, padding=0)
        return same_bits(out, reference[starts]), count

    def mixes(self, reference: Tensor) -> bool:
        """As decoding rows, a window and a chunk in one pass, with padding behind."""
        end = self.context
        spans = [(end - 1, end), (end - 5, end), (0, end // 2), (3, 4), (end // 2, end - 7)]
        out = self._pass(self._store(self._order), spans, self._order, padding=3)
        rows = [position for start, stop in spans for position in range(start, stop)]
        return same_bits(out[: len(rows)], reference[rows])

    def _chunked(self, rows: int, order: list[int]) -> Tensor:
        layer = self._store(order)
        chunks = [(start, min(start + rows, self.context)) for start in range(0, self.context, rows)]
        outs = [
            self._pass(layer, [(start, stop)], order, padding=rows - (stop - start))[: stop - start]
            for start, stop in chunks
        ]
        return torch.cat(outs)

    def _store(self, order: list[int]) -> KVLayer:
        size = self._geometry.page_size
        shape = (self._num_pages, self._geometry.kv_heads)
        dim, dtype = self._geometry.head_dim, self._k.dtype
        layer = KVLayer(
            torch.zeros(*shape, dim, size, dtype=dtype), torch.zeros(*shape, size, dim, dtype=dtype)
        )
        slots = torch.tensor([order[p // size] * size + p % size for p in range(self.context)])
        self._arithmetic.store(self._k, self._v, layer, slots)
        return layer

    def _pass(self, layer: KVLayer, spans: list[tuple[int, int]], order: list[int], padding: int) -> Tensor:
        positions = [position for start, stop in spans for position in range(start, stop)]
        total = len(positions) + padding
        starts = [0]
        for start, stop in spans:
            starts.append(starts[-1] + stop - start)
        q = torch.zeros(total, *self._q.shape[1:], dtype=self._q.dtype)
        q[: len(positions)] = self._q[positions]
        rows = Rows(
            token_ids=torch.zeros(total, dtype=torch.int64),
            positions=torch.tensor(positions + [0] * padding),
            slots=torch.full((total,), -1, dtype=torch.int64),
            span_starts=torch.tensor(starts, dtype=torch.int32),
            page_table=torch.tensor([order] * len(spans), dtype=torch.int32),
        )
        scale = self._geometry.head_dim**-0.5
        return self._arithmetic.attention(q, layer, rows, scale=scale, window=self._window)
