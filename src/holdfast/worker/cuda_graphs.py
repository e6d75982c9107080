"""Passes as CUDA graphs: the decoder from token ids to the last norm, captured once for each number of rows. Long ones end
before the last layer (`last_layer.py`).

A graph reads whatever changes from one pass to the next from one buffer that stays where it is, and writes to two others:

    buffer     | token_ids | positions | slots | tiles | page table ... |    as `batch.py` lays a pass out
    output     [most rows, hidden]   behind the last norm, or what the last layer reads
    residual   [most rows, hidden]   where it ends before the last layer

All graphs share the buffers and the memory of what lies between; passes run one after the other on one stream, so nobody is
in anybody's way. The head and the sampler are not captured. While a graph is captured the buffer says that there is
nothing to do: no slot is written, no tile attends.

What fits which graph is worked out here; what CUDA does about it is `CudaRecorder`'s business alone.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from holdfast.models.decoder import Decoder, LayerHook
from holdfast.numerics.batch_sizes import MAX_SHORT_TILE_TOKENS
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.worker.input_batch import DeviceBatch, InputBatch, Layout, fill, layout_of
from holdfast.worker.transfer import staging

Progress = Callable[[int, int], None]  # (graphs captured, in all)
Work = Callable[[], None]

_PAGE_ENTRIES = 1 << 18  # in a page table; a pass with more is not captured: 256 sequences of 1024 pages
_CUT_TILES = 64  # tall tiles that are not full


class Recorder(Protocol):
    """Keeps work, to be done again and again."""

    def record(self, work: Work) -> Work: ...


class CudaRecorder:
    """Captures CUDA graphs that share one pool of memory. Called on its own stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        work()  # kernels are compiled and libraries make up their minds outside of the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


@dataclass(frozen=True)
class _Graph:
    rows: ForwardBatch  # in the buffer
    replay: Work


class CudaGraphs:
    """The captured passes of a decoder, by (rows, canonical)."""

    def __init__(
        self,
        decoder: Decoder,
        layers: Sequence[KVLayer],
        tall_rows: int,
        ends_early: Callable[[int], bool],
        layer_hook: Callable[[ForwardBatch], LayerHook] | None = None,
    ) -> None:
        """tall_rows: how many rows a tall tile holds; ends_early: whether passes of so many rows end before the last layer;
        between: what stands between the layers of a pass of these rows."""
        self._ends_early = ends_early
        self._tall_rows = tall_rows
        self._layer_hook = layer_hook
        self._decoder = decoder
        self._layers = layers
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        self._sizes: dict[bool, list[int]] = {False: [], True: []}
        self._max_pages = 0
        self._buffer = self._output = self._residual = torch.empty(0)

    def capture(
        self,
        sizes: Sequence[int],
        canonical_sizes: Sequence[int],
        max_pages: int,
        recorder: Recorder,
        progress: Progress | None = None,
    ) -> None:
        """CudaGraphs of so many rows each, for sequences of at most max_pages; those captured before are given up."""
        wanted = sorted(
            {(size, False) for size in sizes} | {(size, True) for size in canonical_sizes}, reverse=True
        )
        self._graphs = {}
        if wanted:
            self._allocate(wanted[0][0], max_pages)
        with no_collection():
            for done, (size, canonical) in enumerate(wanted, 1):
                self._graphs[size, canonical] = self._record(size, canonical, recorder)
                if progress is not None:
                    progress(done, len(wanted))
        for canonical in (False, True):
            self._sizes[canonical] = sorted(size for size, which in self._graphs if which is canonical)

    def size_for(
        self, batch: InputBatch, num_tokens_padded: int, *, canonical: bool, exact: bool
    ) -> int | None:
        """The rows of the graph a pass takes: as many as it has, or if they need not be exact, some more."""
        for size in self._sizes[canonical]:
            if size == num_tokens_padded or (size > num_tokens_padded and not exact):
                return size if self._fits(batch, size) else None
        return None

    def load(self, batch: InputBatch, size: int, *, canonical: bool) -> DeviceBatch:
        """The batch into the buffer, by one copy behind everything that reads what is there now."""
        layout = layout_of(batch, size, self._room(size))
        host = staging(layout.num_words, self._buffer.device)
        fill(host.numpy(), batch, layout)
        self._buffer[: layout.num_words].copy_(host, non_blocking=True)
        return layout.sent(self._buffer, self._graphs[size, canonical].rows)

    def replay(self, size: int, *, canonical: bool) -> Tensor:
        """What the loaded rows give, [size, hidden]; it stays until the next replay on the stream."""
        self._graphs[size, canonical].replay()
        return self._output[:size]

    @property
    def output(self) -> Tensor:
        """Where replays leave what they give, [most rows, hidden]."""
        return self._output

    def residual(self, size: int) -> Tensor:
        """What a replay that ended early gives beside it."""
        return self._residual[:size]

    def _fits(self, batch: InputBatch, size: int) -> bool:
        short, tall = self._room(size)
        return (
            batch.num_short_tiles <= short
            and len(batch.tiles) - batch.num_short_tiles <= tall
            and batch.page_table.shape[1] <= self._max_pages
            and layout_of(batch, size, (short, tall)).num_words <= len(self._buffer)
        )

    def _room(self, size: int) -> tuple[int, int]:
        """How many short and how many tall tiles a graph has: one with few rows has no tall ones, which would cost it a
        launch a layer; one with many has them for long prompts, and for some that are cut."""
        if size <= MAX_SHORT_TILE_TOKENS:
            return size, 0
        return MAX_SHORT_TILE_TOKENS, size // self._tall_rows + _CUT_TILES

    def _allocate(self, most_rows: int, max_pages: int) -> None:
        device, config = self._decoder.backend.device, self._decoder.config
        self._max_pages = max_pages
        # Behind the table: where spans start, and for each row what it is wanted for and its lane's places.
        num_words = 11 * most_rows + _PAGE_ENTRIES // 2 + 32
        self._buffer = torch.zeros(num_words, dtype=torch.int64, device=device)
        self._output, self._residual = (
            torch.zeros(most_rows, config.hidden_size, dtype=self._decoder.dtype, device=device)
            for _ in range(2)
        )

    def _record(self, size: int, canonical: bool, recorder: Recorder) -> _Graph:
        rows = self._rows(size)
        for tensor, nothing in ((self._buffer, 0), (rows.slots, -1)):
            tensor.fill_(nothing)
        output, residual = self._output[:size], self._residual[:size]
        layer_hook = None if self._layer_hook is None else self._layer_hook(rows)

        def whole() -> None:
            output.copy_(
                self._decoder.forward(rows, self._layers, canonical=canonical, layer_hook=layer_hook)
            )

        def body() -> None:
            left = self._decoder.forward_body(rows, self._layers, canonical=canonical, layer_hook=layer_hook)
            residual.copy_(left[0])
            output.copy_(left[1])

        return _Graph(rows, recorder.record(body if self._ends_early(size) else whole))

    def _rows(self, size: int) -> ForwardBatch:
        """The buffer's rows, with a page table as long as it can be. Where spans start is not for graphs to know."""
        before = Layout(size, *self._room(size), (1, 0), ())
        entries = 2 * (len(self._buffer) - before.num_words) // 4 * 4  # so that what stands behind is aligned
        layout = Layout(size, *self._room(size), (1, entries), ())
        return replace(layout.rows(self._buffer), max_pages=self._max_pages)


@contextmanager
def no_collection() -> Iterator[None]:
    """Nothing is freed behind a capture's back."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
