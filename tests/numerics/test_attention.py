"""Attention: near the exact softmax, and bits that do not depend on tiles, chunks, pages and other
requests."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.numerics.attention_tiles import list_decode_tiles
from holdfast.numerics.ops import Backend
from support.paged_kv import PagedKV, shuffled_pages

MakeSequences = Callable[..., Any]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    position: int,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [H, D]; keys, values [length, KVH, D] -> fp64 [H * D]."""
    first = 0 if window is None else max(0, position - window + 1)
    group = q.shape[0] // keys.shape[1]
    k = keys[first : position + 1].double().repeat_interleave(group, 1)
    v = values[first : position + 1].double().repeat_interleave(group, 1)
    scores = torch.einsum("hd,lhd->hl", q.double(), k) * scale
    scores = scores if soft_cap is None else torch.tanh(scores / soft_cap) * soft_cap
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None]), -1)
        v = torch.cat((v, torch.zeros_like(v[:1])))
    weights = torch.softmax(scores, -1)
    return torch.einsum("hl,lhd->hd", weights, v).flatten()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "page_size"),
    [(9, 3, 64, 16), (4, 4, 8, 64), (8, 1, 72, 32), (2, 1, 256, 128)],
)
@pytest.mark.parametrize("window", [None, 1, 50])
def test_attention_is_near_the_exact_softmax(
    quick_backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences,
    assert_near: Callable[[Tensor, Tensor], None], heads: int, kv_heads: int, width: int,
    page_size: int, window: int | None,
) -> None:  # fmt: skip
    sequences = make_sequences(quick_backend, dtype, [150, 65, 3], kv_heads, width, page_size)
    spans = [(0, 100, 50), (1, 64, 1), (2, 0, 3)]
    assert_near(*_attended_and_exact(quick_backend, sequences, spans, heads, window))


@pytest.mark.parametrize(("heads", "width", "window"), [(2, 72, 50), (6, 16, None)])
def test_tiled_attention_is_near_the_exact_softmax(
    triton_backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences,
    assert_near: Callable[[Tensor, Tensor], None], heads: int, width: int, window: int | None,
) -> None:  # fmt: skip
    sequences = make_sequences(triton_backend, dtype, [80, 3], 2, width, 64)
    assert_near(*_attended_and_exact(triton_backend, sequences, [(0, 60, 20), (1, 2, 1)], heads, window))


def test_soft_cap_bounds_the_scores(
    backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences,
    assert_near: Callable[[Tensor, Tensor], None],
) -> None:  # fmt: skip
    sequences = make_sequences(backend, dtype, [80, 3], 2, 16, 64)
    spans = [(0, 75, 5), (1, 2, 1)]
    found, wanted = _attended_and_exact(backend, sequences, spans, 4, 30, soft_cap=0.5)
    assert_near(found, wanted)
    uncapped, _ = _attended_and_exact(backend, sequences, spans, 4, 30)
    assert (found - uncapped).abs().max() > 0.05
    alone, _ = _attended_and_exact(backend, sequences, spans[:1], 4, 30, soft_cap=0.5)
    assert torch.equal(alone, found[:5])


SINKS = torch.tensor([-2.0, 0.0, 1.5, 40.0, -30.0, 3.0])  # far above and far below the scores, too


@pytest.mark.parametrize("window", [None, 20])
def test_sinks_take_weight_from_all_positions(
    backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences,
    assert_near: Callable[[Tensor, Tensor], None], window: int | None,
) -> None:  # fmt: skip
    sequences = make_sequences(backend, dtype, [40, 3], 2, 24, 16)
    spans = [(0, 30, 10), (1, 2, 1)]
    found, wanted = _attended_and_exact(backend, sequences, spans, 6, window, sinks=SINKS)
    assert_near(found, wanted)
    heads = found.view(-1, 6, 24).float().abs().amax((0, 2))
    assert heads[3] < 1e-9 and heads[4] > 0.1
    without, _ = _attended_and_exact(backend, sequences, spans, 6, window)
    assert (found - without).abs().max() > 0.05


def _attended_and_exact(
    backend: Backend,
    sequences: Any,
    spans: list[tuple[int, int, int]],
    heads: int,
    window: int | None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    width, dtype = sequences.layer.keys.shape[2], sequences.layer.keys.dtype
    batch = sequences.batch(spans, padding=2)
    q = random(batch.num_tokens, heads, width, dtype=dtype)
    scale = 1 / math.sqrt(width)
    out = backend.attention(
        q, sequences.layer, batch, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks
    )
    assert out.shape == (batch.num_tokens, heads * width)
    assert not out[-2:].any()
    owners = [s for s, _, n in spans for _ in range(n)]
    wanted = [
        exact(
            *(q[i], sequences.keys[s], sequences.values[s], int(batch.positions[i]), scale, window),
            soft_cap,
            sinks,
        )
        for i, s in enumerate(owners)
    ]
    return out[: len(owners)], torch.stack(wanted)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "has_sinks"),
    [(9, 3, 64, False), (4, 4, 24, False), (2, 1, 128, False), (6, 2, 24, True)],
)
@pytest.mark.usefixtures("shape_dependent_gemm")
def test_token_has_the_same_bits_in_decode_and_in_any_chunk(
    quick_backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences, heads: int, kv_heads: int,
    width: int, has_sinks: bool, window: int | None,
) -> None:  # fmt: skip
    length = 200
    sequences = make_sequences(quick_backend, dtype, [length, 90], kv_heads, width, 16)
    q = random(length, heads, width, dtype=dtype)

    def attend(spans: list[tuple[int, int, int]], queries: Tensor, **batch: int) -> Tensor:
        placed = sequences.batch(spans, **batch)
        sinks = SINKS if has_sinks else None
        return quick_backend.attention(
            queries, sequences.layer, placed, scale=0.2, window=window, sinks=sinks
        )

    whole = attend([(0, 0, length)], q)
    is_torch = quick_backend.recipe.path == "torch"
    for position in (0, 1, 15, 16, 63, 64, 65, 127, 130, 199):
        assert torch.equal(attend([(0, position, 1)], q[position : position + 1])[0], whole[position])
    for chunk in (48,) if is_torch else (3, 7, 16, 48, 100):
        for start in range(0, length, chunk):
            some = q[start : start + chunk]
            assert torch.equal(attend([(0, start, len(some))], some), whole[start : start + chunk])
    other = random(90, heads, width, dtype=dtype, seed=9)
    mixed = attend([(1, 0, 90), (0, 31, 20)], torch.cat((other, q[31:51])), padding=0)
    assert torch.equal(mixed[90:], whole[31:51])


def test_token_has_the_same_bits_in_short_and_tall_tiles(
    triton_backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences
) -> None:
    """Scores are small integers and the scale is ln 2, so softmax weights are powers of two and
    every sum is exact.

    The bits of inexact sums are a property of the GPU's tensor cores; tests/gpu compares them.
    """
    sequences = make_sequences(triton_backend, dtype, [70], 2, 16, 64, integers=True)
    q = torch.zeros(70, 4, 16)
    q[:, :, :4] = torch.randint(-1, 2, (70, 4, 4), generator=torch.Generator().manual_seed(3))
    q = q.to(dtype)

    def attend(start: int, stop: int) -> Tensor:
        batch = sequences.batch([(0, start, stop - start)])
        return triton_backend.attention(q[start:stop], sequences.layer, batch, scale=math.log(2), window=50)

    whole = attend(0, 70)
    for start, stop in ((63, 64), (69, 70), (30, 66)):
        assert torch.equal(attend(start, stop), whole[start:stop])


@pytest.mark.parametrize("programs", [8, 1])
def test_requests_that_share_a_tile_have_the_bits_they_have_alone(
    triton_backend: Backend, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, programs: int
) -> None:
    """All but the last begin with the same pages. programs: so many for all tiles. Sums are exact."""
    monkeypatch.setattr("holdfast.numerics.backends.triton.attention.work._TARGET_PROGRAMS", programs)
    lengths = [300, 340, 830, 610, 70]
    num_pages, table = shuffled_pages(lengths, 64)
    layer = triton_backend.new_kv_layer(num_pages, 1, 16)
    generator = torch.Generator().manual_seed(3)
    for tensor in (layer.keys, layer.values):
        tensor.copy_(torch.randint(-1, 2, tensor.shape, generator=generator))
    sequences = PagedKV(layer, table, [], [])
    table[1:4, :4] = table[0, :4]
    table[3, :9] = table[2, :9]
    q = torch.randint(-1, 2, (5, 4, 16), generator=generator).to(dtype)
    q[:, :, 4:] = 0
    spans = [(request, length - 1, 1) for request, length in enumerate(lengths)]
    batch = sequences.batch(spans)
    tiles = list_decode_tiles(batch.positions.numpy(), table.numpy(), 4, page_size=64, split_pages=4)
    assert tiles[:, 1].tolist() == [2, 2, 1]
    assert tiles[:2, 4:].tolist() == [[1, 1], [2, 2]]  # splits: common, own

    def attend(batch: Any, q: Tensor) -> Tensor:
        return triton_backend.attention(q, sequences.layer, batch, scale=math.log(2), window=None)

    together = attend(batch, q)
    assert together.isfinite().all()
    for row, span in enumerate(spans):
        assert torch.equal(attend(sequences.batch([span]), q[row : row + 1])[0], together[row])


def test_c_bits_do_not_depend_on_pages_or_threads(
    c_backend: Backend, c_backend_one_thread: Backend, dtype: torch.dtype, make_sequences: MakeSequences
) -> None:
    q = random(140, 6, 40, dtype=dtype)
    results = []
    for page_size, page_seed, backend in (
        *((16, 0, c_backend), (16, 5, c_backend), (8, 1, c_backend), (32, 2, c_backend_one_thread)),
        *((64, 3, c_backend), (128, 4, c_backend_one_thread)),
    ):
        sequences = make_sequences(backend, dtype, [140], 2, 40, page_size, page_seed=page_seed)
        results.append(
            backend.attention(q, sequences.layer, sequences.batch([(0, 0, 140)]), scale=0.1, window=None)
        )
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.usefixtures("shape_dependent_gemm")
def test_torch_bits_do_not_depend_on_pages(dtype: torch.dtype, make_sequences: MakeSequences) -> None:
    from holdfast.numerics.backends.torch.backend import TorchBackend

    backend = TorchBackend(dtype)
    q = random(40, 6, 40, dtype=dtype)
    results = []
    for page_size, page_seed in ((16, 0), (16, 5), (64, 2)):
        sequences = make_sequences(backend, dtype, [140], 2, 40, page_size, page_seed=page_seed)
        results.append(
            backend.attention(q, sequences.layer, sequences.batch([(0, 100, 40)]), scale=0.1, window=None)
        )
    assert all(torch.equal(result, results[0]) for result in results)


def test_later_positions_are_not_read(
    c_backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences
) -> None:
    """Infinite keys and values at later positions of the same tile do not change earlier tokens."""
    sequences = make_sequences(c_backend, dtype, [40], 1, 16, 16)
    q = random(40, 3, 16, dtype=dtype)
    clean = c_backend.attention(q, sequences.layer, sequences.batch([(0, 0, 40)]), scale=0.25, window=None)
    bad = torch.full((1, 1, 16), float("inf"), dtype=dtype)
    c_backend.store_kv(bad, bad, sequences.layer, sequences.batch([(0, 37, 1)]).slots)
    dirty = c_backend.attention(q, sequences.layer, sequences.batch([(0, 0, 40)]), scale=0.25, window=None)
    assert torch.equal(dirty[:37], clean[:37])
    windowed = c_backend.attention(
        q[38:], sequences.layer, sequences.batch([(0, 38, 2)]), scale=0.25, window=1
    )
    assert windowed.isfinite().all()


def test_attention_reads_strided_queries(
    backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences
) -> None:
    sequences = make_sequences(backend, dtype, [20], 2, 16, 16)
    fused = random(20, 8 * 16, dtype=dtype)
    view = fused[:, :64].view(20, 4, 16)
    batch = sequences.batch([(0, 0, 20)])
    got = backend.attention(view, sequences.layer, batch, scale=0.25, window=None)
    assert torch.equal(
        got, backend.attention(view.contiguous(), sequences.layer, batch, scale=0.25, window=None)
    )


@pytest.mark.parametrize("width", [6, 10, 18])
def test_narrow_heads_do_not_read_stale_scratch(
    c_backend: Backend, dtype: torch.dtype, make_sequences: MakeSequences, width: int
) -> None:
    def run(width: int) -> Tensor:
        sequences = make_sequences(c_backend, dtype, [40], 2, width, 16)
        batch = sequences.batch([(0, 0, 40)])
        q = random(40, 4, width, dtype=dtype)
        return c_backend.attention(q, sequences.layer, batch, scale=0.3, window=None)

    before = run(width)
    run(64)
    assert torch.equal(run(width), before)
