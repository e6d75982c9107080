"""Passes as CUDA graphs: the decoder from token ids to the last norm, captured once for each batch
size. Large ones end before the last layer (`head.py`).

A graph reads everything that changes between passes from one buffer with a fixed address, and
writes to two others:

    buffer     | token_ids | positions | slots | tiles | page table ... |    laid out by `input_batch.py`
    output     [max tokens, hidden]   after the last norm, or the input of the last layer
    residual   [max tokens, hidden]   only if the graph ends before the last layer

All graphs share the buffers and the memory pool: passes run one after the other on one stream. The
head and the sampler are not captured here (`head.py`). During capture the buffer describes
an empty pass: no slot is written, no tile attends.

This module decides which pass takes which graph; only `CudaRecorder` calls CUDA.
"""

import ctypes
import gc
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.core.garbage_collection import paused_collection
from holdfast.models.decoder import Decoder, LayerHook
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.batch_sizes import MAX_SHORT_TILE_TOKENS
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.worker.input_batch import (
    DeviceBatch,
    InputBatch,
    Layout,
    fill_buffer,
    layout_of,
    num_replayed,
)
from holdfast.worker.transfer import staging_buffer

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # (graphs captured, in all)
Work = Callable[[], None]

# Of the page table, as for 256 requests of 1024 pages. Larger passes run without a graph.
_MAX_PAGE_ENTRIES = 1 << 18
_LARGER = 1.25  # times the tokens: a graph of this size does for a while
_MANY_USES = 64  # after which it does not
_TOKENS_OF_A_USE = (
    256  # a size without any graph is captured after one use, and one more for each so many tokens
)
_PARTIAL_TILES = 64  # tall tiles that are not full
_MAX_STATES = 512  # spans with a recurrent state; passes with more run without a graph
_MAX_REPLAYED = 4096  # tokens before them that are computed again, whose prepared inputs take memory
_LISTED_SIZES = (8, 512, 4096)  # of passes whose kernels are listed


class Recorder(Protocol):
    """Records work so that it can be replayed."""

    def record(self, work: Work) -> Work: ...

    def kernels(self, work: Work) -> set[str]:
        """Return the names of the kernels that this work launches."""


class CudaRecorder:
    """Captures CUDA graphs that share one memory pool. Called on its own stream."""

    def __init__(self, stream: Any) -> None:
        import torch

        self._cuda, self._stream = torch.cuda, stream
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        work()  # kernels are compiled and libraries choose their algorithms outside of the capture
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def kernels(self, work: Work) -> set[str]:
        graph = self._cuda.CUDAGraph(keep_graph=True)
        with self._cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return kernels_of_graph(graph.raw_cuda_graph())


class _KernelNode(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2`."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("launch", ctypes.c_uint * 7),
        ("arguments", ctypes.c_void_p * 2),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def kernels_of_graph(graph: int) -> set[str]:
    """Return the names of the kernels in a captured graph, as the driver knows them; none if it is too old
    to tell. torch's profiler would take seconds."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
    driver.cuGraphGetNodes(handle, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    names: set[str] = set()
    for node in nodes:
        found, name = _KernelNode(), ctypes.c_char_p()
        try:
            if driver.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(found)):
                continue  # a copy or the like
            if found.function:
                driver.cuFuncGetName(ctypes.byref(name), ctypes.c_void_p(found.function))
            else:
                driver.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(found.kernel))
        except AttributeError:
            return set()
        names.add((name.value or b"").decode())
    return names - {""}


@dataclass(frozen=True)
class _Graph:
    batch: ForwardBatch  # views of the buffer
    replay: Work


class CudaGraphs:
    """The captured passes of a decoder, by (batch size, canonical)."""

    def __init__(
        self,
        decoder: Decoder,
        layers: Sequence[KVLayer],
        tall_tile_tokens: int,
        ends_early: Callable[[int], bool],
        layer_hook: Callable[[ForwardBatch], LayerHook | None] = lambda batch: None,
    ) -> None:
        """ends_early: whether passes of this size end before the last layer. layer_hook: what is done between
        the layers of a captured pass."""
        self._decoder = decoder
        self._layers = layers
        self._tall_tile_tokens = tall_tile_tokens
        self._ends_early = ends_early
        self._layer_hook = layer_hook
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        self._sizes: dict[bool, list[int]] = {False: [], True: []}
        self._recorder: Recorder | None = None  # of graphs that are captured when they are used
        self._uses: Counter[tuple[int, bool]] = Counter()  # of sizes without a graph
        self._max_pages = 0
        self._buffer = self._output = self._residual = arrays_on(decoder.backend.device).empty(0)

    def capture(
        self,
        sizes: Sequence[int],
        canonical_sizes: Sequence[int],
        max_pages: int,
        recorder: Recorder,
        progress: Progress | None = None,
        *,
        lazily: bool = False,
    ) -> None:
        """Capture graphs of these sizes, for requests of at most max_pages. Drop those captured before.
        lazily: each when it was used so often that it is worth the capture, which costs several passes."""
        wanted = sorted(
            {(size, False) for size in sizes} | {(size, True) for size in canonical_sizes}, reverse=True
        )
        self._graphs = {}
        if wanted:
            self._allocate(wanted[0][0], max_pages)
        for canonical in (False, True):
            self._sizes[canonical] = sorted(size for size, which in wanted if which is canonical)
        if lazily:
            self._recorder = recorder
            return
        with gc_paused():
            for done, (size, canonical) in enumerate(wanted, 1):
                self._graphs[size, canonical] = self._record(size, canonical, recorder)
                if progress is not None:
                    progress(done, len(wanted))

    def capture_next(self) -> bool:
        """Capture one more graph that was not used yet. Return False if there is none."""
        for canonical, sizes in self._sizes.items():
            for size in sizes:
                if (size, canonical) not in self._graphs:
                    return self._is_captured(size, canonical)
        return False

    def release(self) -> None:
        """Drop all graphs. Passes run without them from now on."""
        self._graphs, self._recorder = {}, None
        self._sizes = {False: [], True: []}

    def _is_captured(self, size: int, canonical: bool) -> bool:
        """Return whether there is a graph of this size. Capture it if need be, after the largest of similar
        sizes, whose memory it fits. Without memory for it, passes run without."""
        if (size, canonical) in self._graphs:
            return True
        if self._recorder is None:
            return False
        is_small = size <= MAX_SHORT_TILE_TOKENS
        largest = max(one for one in self._sizes[canonical] if (one <= MAX_SHORT_TILE_TOKENS) is is_small)
        try:
            with gc_paused(collects=False):
                for one in dict.fromkeys((largest, size)):
                    if (one, canonical) not in self._graphs:
                        self._graphs[one, canonical] = self._record(one, canonical, self._recorder)
        except RuntimeError as error:  # out of memory, too
            _log.warning("no more CUDA graphs are captured, and passes without one run slower: %s", error)
            self._recorder = None
            return (size, canonical) in self._graphs
        return True

    def list_kernels(self) -> set[str]:
        """Return the kernels of a pass that decodes and of one with a chunk of a prompt."""
        sizes = [size for size in self._sizes[False] if size in _LISTED_SIZES]
        if self._recorder is None:
            return set()
        with gc_paused(collects=False):
            found = [self._recorder.kernels(self._prepare(size, canonical=False)[1]) for size in sizes]
        return set().union(*found)

    def size_for(
        self,
        batch: InputBatch,
        num_tokens_padded: int,
        larger_sizes: Collection[int] = (),
        *,
        canonical: bool,
        exact: bool,
    ) -> int | None:
        """Return the size of the graph that a pass takes, if any. exact: no more padding is allowed than to
        larger_sizes.

        A graph that was captured for a size a little larger is used until the better one is worth its capture.
        """
        sizes = [
            size
            for size in self._sizes[canonical]
            if size == num_tokens_padded or (size > num_tokens_padded and (not exact or size in larger_sizes))
        ]
        if not sizes or (exact and sizes[0] != num_tokens_padded) or not self._fits(batch, sizes[0]):
            return None
        best = sizes[0]
        if (best, canonical) in self._graphs:
            return best
        self._uses[best, canonical] += 1
        num_uses = self._uses[best, canonical]
        if num_uses < _MANY_USES:
            for size in sizes[1:]:
                if size <= min(best * _LARGER, MAX_SHORT_TILE_TOKENS) and (size, canonical) in self._graphs:
                    return size
        is_worth_it = num_uses > 1 + best // _TOKENS_OF_A_USE
        return best if is_worth_it and self._is_captured(best, canonical) else None

    def load(self, batch: InputBatch, size: int, *, canonical: bool) -> DeviceBatch:
        """Copy the batch into the buffer, after all enqueued work that reads the buffer."""
        layout = layout_of(batch, size, self._num_tiles(size), self._num_states(size))
        host = staging_buffer(layout.num_words, self._buffer.device)
        fill_buffer(host.numpy(), batch, layout)
        self._buffer[: layout.num_words].copy_(host, non_blocking=True)
        return layout.device_batch(self._buffer, self._graphs[size, canonical].batch)

    def replay(self, size: int, *, canonical: bool) -> Tensor:
        """Run the loaded batch: [size, hidden], valid until the next replay on the stream."""
        self._graphs[size, canonical].replay()
        return self._output[:size]

    @property
    def output(self) -> Tensor:
        """The buffer that replays write to, [max tokens, hidden]."""
        return self._output

    def residual(self, size: int) -> Tensor:
        """Return the residual stream, after the replay of a graph that ends early."""
        return self._residual[:size]

    def _fits(self, batch: InputBatch, size: int) -> bool:
        short, tall = self._num_tiles(size)
        return (
            batch.num_short_tiles <= short
            and len(batch.tiles) - batch.num_short_tiles <= tall
            and batch.page_table.shape[1] <= self._max_pages
            and (batch.states is None or len(batch.states) <= self._num_states(size))
            and (batch.states is None or num_replayed(batch.states) <= self._num_replayed(size))
            and layout_of(batch, size, (short, tall), self._num_states(size)).num_words <= len(self._buffer)
        )

    def _num_states(self, size: int) -> int:
        """Return how many spans with a recurrent state a graph has."""
        return min(size, _MAX_STATES) if self._max_replayed else 0

    def _num_tiles(self, size: int) -> tuple[int, int]:
        """Return how many short and tall tiles a graph has. Small graphs have no tall tiles, which cost
        one launch per layer. Large ones have them for long prompts, and some more for partial tiles."""
        if size <= MAX_SHORT_TILE_TOKENS:
            return size, 0
        return MAX_SHORT_TILE_TOKENS, size // self._tall_tile_tokens + _PARTIAL_TILES

    def _allocate(self, max_tokens: int, max_pages: int) -> None:
        xp, config = arrays_on(self._decoder.backend.device), self._decoder.config
        self._max_pages = max_pages
        # After the page table: span starts, and for each token a logits index and four ring numbers.
        num_words = 13 * max_tokens + 3 * self._num_states(max_tokens) + _MAX_PAGE_ENTRIES // 2 + 32
        self._buffer = xp.zeros(num_words, dtype=xp.int64)
        self._output, self._residual = (
            xp.zeros(max_tokens, config.hidden_size, dtype=self._decoder.dtype) for _ in range(2)
        )

    def _record(self, size: int, canonical: bool, recorder: Recorder) -> _Graph:
        batch, work = self._prepare(size, canonical=canonical)
        return _Graph(batch, recorder.record(work))

    def _prepare(self, size: int, *, canonical: bool) -> tuple[ForwardBatch, Work]:
        """Write an empty pass into the buffer. Return it, and the work that computes it."""
        batch = self._forward_batch(size)
        for tensor, value in ((self._buffer, 0), (batch.slots, -1)):
            tensor.fill_(value)
        if batch.recurrent is not None:
            batch.recurrent.spans.fill_(-1)
        output, residual = self._output[:size], self._residual[:size]
        layer_hook = self._layer_hook(batch)

        def forward() -> None:
            found = self._decoder.forward(batch, self._layers, canonical=canonical, layer_hook=layer_hook)
            output.copy_(found)

        def forward_body() -> None:
            found = self._decoder.forward_body(
                batch, self._layers, canonical=canonical, layer_hook=layer_hook
            )
            residual.copy_(found[0])
            output.copy_(found[1])

        return batch, forward_body if self._ends_early(size) else forward

    def _forward_batch(self, size: int) -> ForwardBatch:
        """Return views of the buffer, with the longest page table that fits. Graphs read no span starts."""
        num_states = self._num_states(size)
        before = Layout(size, *self._num_tiles(size), (1, 0), (), num_states)
        entries = 2 * (len(self._buffer) - before.num_words) // 4 * 4  # so that what follows is aligned
        layout = Layout(size, *self._num_tiles(size), (1, entries), (), num_states)
        batch = layout.forward_batch(self._buffer, self._num_replayed(size))
        return replace(batch, max_pages=self._max_pages)

    def _num_replayed(self, size: int) -> int:
        """Return how many tokens before its spans a graph may compute again."""
        return min(self._num_states(size) * self._max_replayed, _MAX_REPLAYED)

    @property
    def _max_replayed(self) -> int:
        """Tokens before a span that are computed again, at most."""
        states = (layer.states for layer in self._layers)
        return max((one.log_len for one in states if one is not None), default=0)


@contextmanager
def gc_paused(*, collects: bool = True) -> Iterator[None]:
    """Collect no garbage during a capture: that would free device memory in the middle of it."""
    if collects:
        gc.collect()
    with paused_collection():
        yield
