"""Paged attention: near the fp64 softmax, and the same bits in decode, in a window and in a chunk."""

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from gpu_numbers import HAS_GPU, assert_near, random, same_bits
from torch import Tensor

from holdfast.numerics.backends.triton.attention import paged
from holdfast.numerics.ops import Backend
from support.paged_kv import PagedKV, shuffled_pages, stored

HEADS = [(32, 8, 128), (9, 3, 64), (16, 8, 128), (12, 2, 128)] if HAS_GPU else [(4, 2, 16), (3, 1, 24)]
CONTEXTS = [8192, 32768] if HAS_GPU else [330]
WINDOWS = [None, 1, 50, 1000] if HAS_GPU else [None, 50]


def make_store(
    backend: Backend, dtype: torch.dtype, lengths: list[int], kv_heads: int, width: int, page_seed: int = 0
) -> PagedKV:
    """Unwritten slots hold NaN."""
    num_pages, table = shuffled_pages(lengths, backend.page_size, page_seed)
    layer = backend.new_kv_layer(num_pages, kv_heads, width)
    layer.keys.fill_(float("nan"))
    layer.values.fill_(float("nan"))
    keys, values = (
        [random(n, kv_heads, width, dtype=dtype, device=backend.device, seed=n + of) for n in lengths]
        for of in (0, 1)
    )
    return stored(backend, layer, table, keys, values)


def exact(q: Tensor, store: PagedKV, request: int, position: int, scale: float, window: int | None) -> Tensor:
    """q [H, D] -> fp64 [H * D]."""
    first = 0 if window is None else max(0, position - window + 1)
    keys, values = store.keys[request], store.values[request]
    group = q.shape[0] // keys.shape[1]
    k = keys[first : position + 1].double().repeat_interleave(group, 1)
    v = values[first : position + 1].double().repeat_interleave(group, 1)
    weights = torch.softmax(torch.einsum("hd,lhd->hl", q.double(), k) * scale, -1)
    return torch.einsum("hl,lhd->hd", weights, v).flatten()


@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("window", WINDOWS)
def test_attention_is_near_the_fp64_softmax(
    backend: Backend, dtype: torch.dtype, heads: int, kv_heads: int, width: int, window: int | None
) -> None:
    store = make_store(backend, dtype, [450, 65, 3], kv_heads, width)
    spans = [(0, 400, 50), (1, 64, 1), (2, 0, 3)]
    batch = store.batch(spans, padding=2)
    q = random(batch.num_tokens, heads, width, dtype=dtype, device=backend.device)
    scale = 1 / math.sqrt(width)
    out = backend.attention(q, store.layer, batch, scale=scale, window=window)
    requests = [request for request, _, count in spans for _ in range(count)]
    expected = [
        exact(q[i], store, request, int(batch.positions[i]), scale, window)
        for i, request in enumerate(requests)
    ]
    assert_near(out[: len(requests)], torch.stack(expected), dtype)
    assert not out[len(requests) :].any()


@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("context", CONTEXTS)
def test_attention_bits_are_the_same_in_decode_window_and_chunk(
    backend: Backend,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    width: int,
    window: int | None,
    context: int,
) -> None:
    """At the end of a long context: alone, among decode tokens, in a window, in a chunk, among other requests."""
    store = make_store(backend, dtype, [context, 300, 70], kv_heads, width)
    chunk = 512 if HAS_GPU else 24
    first = context - chunk
    q = random(chunk, heads, width, dtype=dtype, device=backend.device)
    other = random(70, heads, width, dtype=dtype, device=backend.device, seed=4)

    def attend(spans: list[tuple[int, int, int]], queries: Tensor) -> Tensor:
        return backend.attention(queries, store.layer, store.batch(spans), scale=0.11, window=window)

    whole = attend([(0, first, chunk)], q)
    for at in (0, 1, chunk // 2, chunk - 2, chunk - 1):
        alone = attend([(0, first + at, 1)], q[at : at + 1])
        assert same_bits(alone[0], whole[at])
        beside = attend(
            [(1, 299, 1), (0, first + at, 1), (2, 5, 1)], torch.cat((other[:1], q[at : at + 1], other[1:2]))
        )
        assert same_bits(beside[1], whole[at])
    for length in (2, 5, 16, 17, chunk // 2):
        assert same_bits(attend([(0, first + 7, length)], q[7 : 7 + length]), whole[7 : 7 + length])
    mixed = attend([(2, 0, 70), (0, first + 3, 9)], torch.cat((other, q[3:12])))
    assert same_bits(mixed[70:], whole[3:12])


@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS[:2])
def test_attention_bits_do_not_depend_on_the_pages(
    backend: Backend, dtype: torch.dtype, heads: int, kv_heads: int, width: int
) -> None:
    q = random(20, heads, width, dtype=dtype, device=backend.device)
    found = []
    for seed in (0, 5):
        store = make_store(backend, dtype, [333, 200], kv_heads, width, page_seed=seed)
        found.append(backend.attention(q, store.layer, store.batch([(0, 313, 20)]), scale=0.1, window=None))
    assert same_bits(*found)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("count", [3, 9, 200] if HAS_GPU else [3])
def test_requests_that_share_a_tile_have_the_bits_they_have_alone(
    backend: Backend, dtype: torch.dtype, heads: int, kv_heads: int, width: int, count: int
) -> None:
    """All begin with the same pages. Few requests have several programs for each tile."""
    pages, further = (17, 1500) if HAS_GPU else (4, 80)
    lengths = [pages * 64 + 1 + 331 * number % further for number in range(count)]
    store = make_store(backend, dtype, lengths, kv_heads, width)
    store.page_table[:, :pages] = store.page_table[0, :pages]
    q = random(count, heads, width, dtype=dtype, device=backend.device)
    spans = [(request, length - 1, 1) for request, length in enumerate(lengths)]
    together = backend.attention(q, store.layer, store.batch(spans), scale=0.1, window=None)
    assert together.isfinite().all()
    for row in range(0, count, 1 if count < 20 else 7):
        alone = backend.attention(
            q[row : row + 1], store.layer, store.batch([spans[row]]), scale=0.1, window=None
        )
        assert same_bits(alone[0], together[row])


def test_attention_ignores_later_positions(backend: Backend, dtype: torch.dtype) -> None:
    """Infinite keys and values at later positions do not change earlier tokens."""
    store = make_store(backend, dtype, [100], 2, 64)
    q = random(100, 4, 64, dtype=dtype, device=backend.device)
    clean = backend.attention(q, store.layer, store.batch([(0, 0, 100)]), scale=0.1, window=None)
    bad = torch.full((1, 2, 64), float("inf"), dtype=dtype, device=backend.device)
    backend.store_kv(bad, bad, store.layer, store.batch([(0, 90, 1)]).slots)
    for length in (1, 50, 90):
        dirty = backend.attention(
            q[:length], store.layer, store.batch([(0, 0, length)]), scale=0.1, window=None
        )
        assert same_bits(dirty, clean[:length])


@pytest.mark.skipif(not HAS_GPU, reason="graphs are the GPU's")
def test_attention_in_a_graph_gives_the_bits_of_a_call(
    backend: Backend, dtype: torch.dtype, device: torch.device
) -> None:
    store = make_store(backend, dtype, [1000, 64, 700], 8, 128)
    batch = store.batch([(0, 999, 1), (1, 63, 1), (2, 500, 1)])
    q = random(3, 32, 128, dtype=dtype, device=device)
    batch = store.with_tiles(batch, backend, group=4)
    eager = backend.attention(q, store.layer, batch, scale=0.1, window=None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = backend.attention(q, store.layer, batch, scale=0.1, window=None)
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(captured, eager)


@pytest.mark.skipif(not HAS_GPU, reason="the kernel is for Hopper GPUs")
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("window", [None, 50, 1000])
def test_kernel_for_hopper_has_the_bits_of_the_general_one(
    backend: Backend,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    width: int,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = [9000, 300, 87, 65, 64]
    store = make_store(backend, dtype, lengths, kv_heads, width)
    spans = [(0, 8000, 1000), (1, 0, 300), (2, 17, 70), (3, 0, 65), (4, 0, 64)]
    batch = store.batch(spans, padding=3)
    q = random(batch.num_tokens, heads, width, dtype=dtype, device=backend.device)
    found = backend.attention(q, store.layer, batch, scale=0.09, window=window)
    assert paged._hopper is not None, "the kernel failed to compile"
    monkeypatch.setattr(paged, "_hopper", None)
    assert same_bits(found, backend.attention(q, store.layer, batch, scale=0.09, window=window))


@pytest.mark.parametrize("window", [None, 300])
def test_long_context_among_short_ones_has_the_bits_it_has_alone(
    backend: Backend, dtype: torch.dtype, window: int | None
) -> None:
    """Alone its splits are spread over other programs than among short contexts."""
    longest = 40000 if HAS_GPU else 1100
    lengths = [longest, 640, 70, 300]
    store = make_store(backend, dtype, lengths, 2, 64)
    q = random(4, 4, 64, dtype=dtype, device=backend.device)
    ends = [(request, length - 1, 1) for request, length in enumerate(lengths)]
    prepared = backend.prepare(store.batch(ends, padding=2), 4, 2)
    padded = torch.cat((q, torch.zeros_like(q[:2])))
    together = backend.attention(padded, store.layer, prepared, scale=0.1, window=window)
    for request, end in enumerate(ends):
        alone = backend.attention(
            q[request : request + 1], store.layer, store.batch([end]), scale=0.1, window=window
        )
        assert same_bits(alone[0], together[request])


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("scores", ["far above", "far below"])
def test_attention_bits_are_the_same_where_scores_differ_by_far(
    backend: Backend, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, window: int | None, scores: str
) -> None:
    """In some pages they exceed those of the pages before by far more than 2^40; or all are far below 0."""
    heads, kv_heads, width = HEADS[0]
    context, first = (1500, 900) if HAS_GPU else (330, 290)
    store = make_store(backend, dtype, [context], kv_heads, width)
    q = random(context - first, heads, width, dtype=dtype, device=backend.device)
    for at, page in enumerate(store.page_table[0].tolist()[: -(-context // backend.page_size)]):
        if scores == "far below":
            store.layer.keys[page] = store.layer.keys[page].abs() * -8
        elif at % 5 == 3:
            store.layer.keys[page] *= 96
    if scores == "far below":
        q = q.abs()
    marked = []
    hopper = paged._hopper
    if hopper is not None:
        compute = hopper.attention_tall

        def record(*args: Any, **options: Any) -> Tensor:
            marks: Tensor = compute(*args, **options)
            marked.append(marks.any())
            return marks

        monkeypatch.setattr(hopper, "attention_tall", record)

    def attend(spans: list[tuple[int, int, int]], queries: Tensor) -> Tensor:
        return backend.attention(queries, store.layer, store.batch(spans), scale=0.11, window=window)

    whole = attend([(0, first, len(q))], q)
    assert whole.isfinite().all()
    if scores == "far above" or window is not None:  # else the first block is as far below
        assert all(marked)
    for at in (0, 1, 63, 64, len(q) // 2, len(q) - 1):
        assert same_bits(attend([(0, first + at, 1)], q[at : at + 1])[0], whole[at])
    assert same_bits(attend([(0, first + 5, 30)], q[5:35]), whole[5:35])


@triton.jit
def _exp2(out, x, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(out + at, tl.exp2(tl.load(x + at)))


@pytest.mark.skipif(not HAS_GPU, reason="numpy computes in the interpreter")
def test_whole_numbers_scale_powers_of_two_exactly_below_0() -> None:
    """For all scores on the grid. So no bit depends on the reference of a row."""
    fractions = torch.arange(-(2**15), 0, device="cuda", dtype=torch.float32) / 2**15
    wanted = torch.empty_like(fractions)
    _exp2[(32,)](wanted, fractions, size=1024)
    for whole in range(1, 125):
        found = torch.empty_like(fractions)
        _exp2[(32,)](found, fractions - whole, size=1024)
        assert torch.equal(found * 2.0**whole, wanted)
