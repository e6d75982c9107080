"""Whether attention gives a row the same bits however it is batched: alone, in a window, in a chunk, in any pages."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from holdfast.certification.certificate import OperationCheck
from holdfast.certification.probes import Differences
from holdfast.numerics.batch_sizes import is_interpreted
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.ops import Backend

_SHORT_WINDOW = 40  # shorter than the probe's context, so that it is felt
_MAX_QUERIES = 4096  # different ones; a long context asks them again

Spans = Sequence[tuple[int, int]]  # positions start .. stop - 1 of the one sequence


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
    backend: Backend, geometry: AttentionGeometry, sizes: tuple[int, ...], *, name: str
) -> OperationCheck:
    """One sequence's rows, computed as the reference computes them, then inside passes of every size."""
    windows = [None] if geometry.window is None else [None, min(geometry.window, _SHORT_WINDOW)]
    differences = Differences()
    for window in windows:
        _check_window(backend, geometry, sizes, window, differences)
    return _outcome(name, geometry, sizes, differences)


def check_long_attention(backend: Backend, geometry: AttentionGeometry, *, name: str) -> OperationCheck:
    """The last, a middle and an early stretch of the longest context, as chunks, windows and decoding rows. What differs here
    may differ in a pass of any size: it counts as size 0."""
    rows = backend.recipe.rows
    differences = Differences()
    for window in dict.fromkeys((None, geometry.window)):
        bench = _Bench(backend, geometry, window, geometry.max_context)
        ends = {bench.context, bench.context - 77, bench.context // 2 + 33, min(bench.context, 3 * rows + 1)}
        for end in sorted(end for end in ends if end > 0):
            bench.check_stretch(end, differences)
    return _outcome(name, geometry, (rows,), differences)


def _outcome(
    name: str, geometry: AttentionGeometry, sizes: tuple[int, ...], differences: Differences
) -> OperationCheck:
    shape = f"{geometry.heads} heads, {geometry.kv_heads} kv, {geometry.head_dim}"
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(name, shape, sizes, differing, differences.num_comparisons)


def _check_window(
    backend: Backend,
    geometry: AttentionGeometry,
    sizes: tuple[int, ...],
    window: int | None,
    differences: Differences,
) -> None:
    """The sizes that differ are noted. 0: the reference does, or a pass of any size may."""
    bench = _Bench(backend, geometry, window, min(geometry.max_context, 9 * geometry.page_size + 5))
    reference = bench.reference()  # [context, heads * head_dim]
    rows = backend.recipe.rows
    differences.compare(0, bench.shuffled(), reference)
    # A canonical pass has a multiple of the reference's rows, certified or not: one that differs is the reference's fault.
    for size in sorted({*sizes, *range(rows, max(sizes) + 1, rows)}):
        label = 0 if size % rows == 0 else size
        bench.check_chunk(size, reference, label, differences)
        if size > 2 * rows:
            bench.check_decoding(size, reference, label, differences)
    # Padding adds no sequence, so a pass of any size may hold any number of them, and of any mixture.
    for count in _counts(backend):
        bench.check_decoding(count, reference, 0, differences)
    bench.check_mixture(reference, 0, differences)


def _counts(backend: Backend) -> Sequence[int]:
    """Numbers of decoding rows to try; under the interpreter a few, because each costs seconds."""
    most = 2 * backend.recipe.rows
    return (1, 3) if is_interpreted(backend) else range(1, most + 1)


class _Bench:
    """A probe sequence in a small KV store of its own, in pages in order and in shuffled ones."""

    def __init__(
        self, backend: Backend, geometry: AttentionGeometry, window: int | None, context: int
    ) -> None:
        self._backend, self._geometry, self._window = backend, geometry, window
        self.context = context
        self._device = backend.device
        generator = torch.Generator(self._device).manual_seed(5)
        dtype = getattr(torch, backend.recipe.dtype)
        heads, kv_heads, dim = geometry.heads, geometry.kv_heads, geometry.head_dim

        def random(length: int, count: int) -> Tensor:
            return torch.randn(length, count, dim, generator=generator, device=self._device).to(dtype)

        self._q = random(min(context, _MAX_QUERIES), heads)
        k, v = random(context, kv_heads), random(context, kv_heads)
        num_pages = -(-context // geometry.page_size)
        in_order = torch.arange(num_pages, device=self._device)
        order = torch.randperm(num_pages, generator=generator, device=self._device)
        self._in_order = in_order, self._store(k, v, in_order)
        self._shuffled = order, self._store(k, v, order)

    def reference(self) -> Tensor:
        """The sequence in chunks of the reference's rows, in pages in order."""
        return self._chunked(self._in_order)

    def shuffled(self) -> Tensor:
        """The same chunks in shuffled pages."""
        return self._chunked(self._shuffled)

    def check_chunk(self, size: int, reference: Tensor, label: int, differences: Differences) -> None:
        """As a chunk of `size` rows at the sequence's end."""
        chunk = min(size, self.context)
        last = self._pass([(self.context - chunk, self.context)], self._shuffled, padding=size - chunk)
        differences.compare(label, last[:chunk], reference[-chunk:])

    def check_decoding(self, count: int, reference: Tensor, label: int, differences: Differences) -> None:
        """As so many single rows, each a sequence of its own."""
        starts = [(self.context - 1 - 7 * row % self.context) for row in range(count)]
        out = self._pass([(start, start + 1) for start in starts], self._shuffled, padding=0)
        differences.compare(label, out, reference[torch.tensor(starts, device=self._device)])

    def check_mixture(self, reference: Tensor, label: int, differences: Differences) -> None:
        """As decoding rows, a window and a chunk in one pass, with padding behind."""
        end = self.context
        spans = [(end - 1, end), (end - 5, end), (0, end // 2), (3, 4), (end // 2, end - 7)]
        out = self._pass(spans, self._shuffled, padding=3)
        rows = torch.tensor(
            [position for start, stop in spans for position in range(start, stop)], device=self._device
        )
        differences.compare(label, out[: len(rows)], reference[rows])

    def check_stretch(self, end: int, differences: Differences) -> None:
        """The positions before `end`: as one chunk of the reference's rows, then in every other way. Labelled 0."""
        rows = self._backend.recipe.rows
        length = min(rows, end)
        first = end - length
        reference = self._pass([(first, end)], self._in_order, padding=rows - length)[:length]

        def compare(spans: Spans, padding: int = 0) -> None:
            out = self._pass(spans, self._shuffled, padding=padding)
            at = [position - first for start, stop in spans for position in range(start, stop)]
            own = [row for row, offset in enumerate(at) if offset >= 0]
            picked = torch.tensor([own, [at[row] for row in own]], device=self._device)
            differences.compare(0, out[picked[0]], reference[picked[1]])

        compare([(first, end)], padding=rows - length)
        for size in (5, 64, 2 * rows, 4 * rows):
            compare([(max(0, end - size), end)])
        for count in (1, 2, 7, 32, 64, 128):
            starts = [end - 1 - 3 * row % length for row in range(count)]
            compare([(start, start + 1) for start in starts])
        compare([(end - 1, end), (max(0, end - 9), end), (end - 1, end), (max(0, end - 100), end)], padding=3)

    def _chunked(self, pages: "_Pages") -> Tensor:
        rows = self._backend.recipe.rows
        chunks = [(start, min(start + rows, self.context)) for start in range(0, self.context, rows)]
        outs = [
            self._pass([(start, stop)], pages, padding=rows - (stop - start))[: stop - start]
            for start, stop in chunks
        ]
        return torch.cat(outs)

    def _store(self, k: Tensor, v: Tensor, order: Tensor) -> KVLayer:
        size = self._geometry.page_size
        layer = self._backend.new_kv_layer(len(order), self._geometry.kv_heads, self._geometry.head_dim)
        positions = torch.arange(self.context, device=self._device)
        self._backend.store_kv(k, v, layer, order[positions // size] * size + positions % size)
        return layer

    def _pass(self, spans: Spans, pages: "_Pages", padding: int) -> Tensor:
        order, layer = pages
        positions = [position for start, stop in spans for position in range(start, stop)]
        total = len(positions) + padding
        starts = [0]
        for start, stop in spans:
            starts.append(starts[-1] + stop - start)
        at = torch.tensor(positions + [0] * padding, device=self._device)
        q = self._q[at % len(self._q)]
        q[len(positions) :] = 0
        real = torch.arange(total, device=self._device) < len(positions)
        rows = ForwardBatch(
            token_ids=torch.zeros(total, dtype=torch.int64, device=self._device),
            positions=at,
            slots=torch.where(real, self._slots(at, order), -1),
            span_starts=torch.tensor(starts, dtype=torch.int32, device=self._device),
            page_table=order.to(torch.int32).expand(len(spans), -1).contiguous(),
        )
        scale = self._geometry.head_dim**-0.5
        return self._backend.attention(q, layer, rows, scale=scale, window=self._window)

    def _slots(self, at: Tensor, order: Tensor) -> Tensor:
        size = self._geometry.page_size
        return order[at // size] * size + at % size


_Pages = tuple[Tensor, KVLayer]  # the sequence's pages in order, and the store they are in
