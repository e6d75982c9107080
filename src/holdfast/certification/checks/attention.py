"""Check of attention: a token's bits are the same alone, in a window, in a chunk, in any pages."""

from collections.abc import Generator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from holdfast.certification.certificate import CheckSteps, OperationCheck
from holdfast.certification.checks.order_probes import attention_inputs
from holdfast.certification.checks.probes import Differences, canonical_sizes
from holdfast.models.config import DecoderConfig
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.ops import Backend

_SHORT_WINDOW = 40  # shorter than the probe's context, so that the sliding window matters
_QUICK_DECODE_COUNTS = (1, 3)
_DECODE_COUNTS = (
    *range(1, 34),
    *range(40, 129, 8),
    63,
    65,
    100,
    127,
    129,
    *range(144, 513, 16),
    255,
    257,
    511,
)
_MAX_QUERIES = 4096  # distinct ones; a longer context uses them again

SpanList = Sequence[tuple[int, int]]  # positions start .. stop - 1 of the probe request
_PagedKV = tuple[Tensor, KVLayer]  # the pages of the probe request in order, and their layer


def check_attention(
    backend: Backend,
    model: DecoderConfig,
    max_len: int,
    sizes: tuple[int, ...],
    *,
    name: str,
    is_quick: bool = False,
) -> CheckSteps:
    """Check the tokens of one request, computed as the reference computes them, then in passes of
    every size. is_quick: with few numbers of decode tokens."""
    window, context = _window(model), min(max_len, 9 * backend.page_size + 5)
    windows = [None] if window is None else [None, min(window, _SHORT_WINDOW)]
    differences = Differences()
    for window in windows:
        for spikes in (False, True):
            bench = _AttentionBench(backend, model, window, context, spikes=spikes)
            counts = _QUICK_DECODE_COUNTS if is_quick else _decode_counts(backend)
            yield from _check_window(backend, bench, sizes, counts, differences)
    return _result(name, model, sizes, differences)


def check_long_attention(backend: Backend, model: DecoderConfig, max_len: int, *, name: str) -> CheckSteps:
    """Check a late, a middle and an early stretch of the longest context, as chunks, windows and
    decode tokens. A difference here may occur in a pass of any size: it is reported as size 0."""
    reference_tokens = backend.recipe.rows
    differences = Differences()
    for window, spikes in product(dict.fromkeys((None, _window(model))), (False, True)):
        bench = _AttentionBench(backend, model, window, max_len, spikes=spikes)
        ends = {bench.context - 7, bench.context // 2 + 33, min(bench.context, 3 * reference_tokens + 1)}
        for end in sorted(end for end in ends if 0 < end <= bench.context):
            yield from bench.check_stretch(end, differences)
    return _result(name, model, (reference_tokens,), differences)


def _result(
    name: str, model: DecoderConfig, sizes: tuple[int, ...], differences: Differences
) -> OperationCheck:
    shape = f"{model.num_heads} heads, {model.num_kv_heads} kv, {model.head_dim}"
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(name, shape, sizes, differing, differences.num_comparisons)


def _window(model: DecoderConfig) -> int | None:
    return next((window for window in model.layer_windows if window is not None), None)


def _check_window(
    backend: Backend,
    bench: "_AttentionBench",
    sizes: tuple[int, ...],
    decode_counts: Sequence[int],
    differences: Differences,
) -> Generator[None, None, None]:
    """Add the sizes that differ. 0: the reference differs, or passes of any size may."""
    reference = bench.chunked(shuffled=False)  # [context, heads * head_dim]
    reference_tokens = backend.recipe.rows
    differences.compare(0, bench.chunked(shuffled=True), reference)
    # Canonical passes have multiples of the reference's size: if one differs, the reference does.
    largest = max(sizes)
    for size in sorted({*sizes, *canonical_sizes(backend, largest)}):
        label = 0 if size % reference_tokens == 0 else size
        bench.check_chunk(size, reference, label, differences)
        if size in (4 * reference_tokens, largest) and size > 2 * reference_tokens:
            bench.check_decode(size, reference, label, differences)
        yield
    # Padding adds no request: a pass of any size may hold any number and mixture of requests.
    for count in decode_counts:
        bench.check_decode(count, reference, 0, differences)
        yield
    bench.check_mixture(reference, 0, differences)


def _decode_counts(backend: Backend) -> Sequence[int]:
    """Return numbers of decode tokens to try; few under Triton's interpreter, which is slow."""
    most = 2 * backend.recipe.rows
    return (1, 3) if backend.can.is_interpreted else [count for count in _DECODE_COUNTS if count <= most]


class _AttentionBench:
    """One probe request in KV pages of its own, once in order and once shuffled. Its queries, keys
    and values are normal, or with spikes (`order_probes.attention_inputs`)."""

    def __init__(
        self, backend: Backend, model: DecoderConfig, window: int | None, context: int, *, spikes: bool
    ) -> None:
        self._backend, self._model, self._window = backend, model, window
        self.context = context
        xp = self._arrays = arrays_on(backend.device)
        generator = xp.generator(5)
        dtype = xp.dtype(backend.recipe.dtype)
        heads, kv_heads, dim = model.num_heads, model.num_kv_heads, model.head_dim
        queries = min(context, _MAX_QUERIES)
        if spikes:
            self._q, k, v = attention_inputs(context, queries, heads, kv_heads, dim, dtype, backend.device)
        else:
            self._q, k, v = (
                xp.randn(shape, generator=generator).to(dtype)
                for shape in ((queries, heads, dim), (context, kv_heads, dim), (context, kv_heads, dim))
            )
        self._sinks = xp.linspace(-3, 5, heads) if model.attention_sinks else None
        num_pages = -(-context // backend.page_size)
        in_order = xp.arange(num_pages)
        order = xp.from_numpy(np.random.default_rng(5).permutation(num_pages))
        self._in_order = in_order, self._store(k, v, in_order)
        self._shuffled = order, self._store(k, v, order)

    def chunked(self, *, shuffled: bool) -> Tensor:
        """Return the request in chunks of the reference's size, with pages in order or shuffled."""
        pages, size = self._shuffled if shuffled else self._in_order, self._backend.recipe.rows
        chunks = [(start, min(start + size, self.context)) for start in range(0, self.context, size)]
        outs = [
            self._pass([(start, stop)], pages, padding=size - (stop - start))[: stop - start]
            for start, stop in chunks
        ]
        return self._arrays.cat(outs)

    def check_chunk(self, size: int, reference: Tensor, label: int, differences: Differences) -> None:
        """The last tokens of the request as one chunk of `size` tokens."""
        chunk = min(size, self.context)
        last = self._pass([(self.context - chunk, self.context)], self._shuffled, padding=size - chunk)
        differences.compare(label, last[:chunk], reference[-chunk:])

    def check_decode(self, count: int, reference: Tensor, label: int, differences: Differences) -> None:
        """`count` decode tokens, each a span of its own."""
        starts = [(self.context - 1 - 7 * index % self.context) for index in range(count)]
        out = self._pass([(start, start + 1) for start in starts], self._shuffled, padding=0)
        differences.compare(label, out, reference[self._arrays.tensor(starts)])

    def check_mixture(self, reference: Tensor, label: int, differences: Differences) -> None:
        """Decode tokens, a window and a chunk in one pass, followed by padding."""
        end = self.context
        early = min(3, end - 1)
        wanted = [
            (end - 1, end),
            (max(0, end - 5), end),
            (0, end // 2),
            (early, early + 1),
            (end // 2, end - 7),
        ]
        spans = [(start, stop) for start, stop in wanted if start < stop]  # a short context has fewer
        out = self._pass(spans, self._shuffled, padding=3)
        positions = self._arrays.from_numpy(_positions(spans))
        differences.compare(label, out[: len(positions)], reference[positions])

    def check_stretch(self, end: int, differences: Differences) -> Generator[None, None, None]:
        """Check the positions before `end`: as one chunk of the reference's size, then in every other
        way. Label 0."""
        reference_tokens = self._backend.recipe.rows
        length = min(reference_tokens, end)
        first = end - length
        reference = self._pass([(first, end)], self._in_order, padding=reference_tokens - length)[:length]

        def compare(spans: SpanList, padding: int = 0) -> None:
            out = self._pass(spans, self._shuffled, padding=padding)
            at = _positions(spans) - first
            (own,) = np.nonzero(at >= 0)
            picked = self._arrays.from_numpy(np.stack((own, at[own])))
            differences.compare(0, out[picked[0]], reference[picked[1]])

        compare([(first, end)], padding=reference_tokens - length)
        for size in (5, 64, 2 * reference_tokens, 4 * reference_tokens):
            compare([(max(0, end - size), end)])
            yield
        for count in (1, 2, 7, 32, 64, 128):
            starts = [end - 1 - 3 * index % length for index in range(count)]
            compare([(start, start + 1) for start in starts])
            yield
        compare([(end - 1, end), (max(0, end - 9), end), (end - 1, end), (max(0, end - 100), end)], padding=3)

    def _store(self, k: Tensor, v: Tensor, order: Tensor) -> KVLayer:
        size = self._backend.page_size
        layer = self._backend.new_kv_layer(len(order), self._model.num_kv_heads, self._model.head_dim)
        positions = self._arrays.arange(self.context)
        self._backend.store_kv(k, v, layer, order[positions // size] * size + positions % size)
        return layer

    def _pass(self, spans: SpanList, pages: _PagedKV, padding: int) -> Tensor:
        (order, layer), xp = pages, self._arrays
        positions = _positions(spans)
        num_real = len(positions)
        num_tokens = num_real + padding
        starts = np.cumsum([0, *(stop - start for start, stop in spans)], dtype=np.int32)
        at = xp.from_numpy(np.pad(positions, (0, padding)))
        q = self._q[at % len(self._q)]
        q[num_real:] = 0
        size = self._backend.page_size
        slots = order[at // size] * size + at % size
        slots[num_real:] = -1
        batch = ForwardBatch(
            token_ids=xp.zeros(num_tokens, dtype=xp.int64),
            positions=at,
            slots=slots,
            span_starts=xp.from_numpy(starts),
            page_table=order.to(xp.int32).expand(len(spans), -1).contiguous(),
        )
        return self._backend.attention(
            *(q, layer, batch),
            scale=self._model.head_dim**-0.5,
            window=self._window,
            soft_cap=self._model.attention_soft_cap,
            sinks=self._sinks,
        )


def _positions(spans: SpanList) -> NDArray[np.int64]:
    """Return the positions of all spans, one span after the other."""
    return np.concatenate([np.arange(start, stop) for start, stop in spans])
