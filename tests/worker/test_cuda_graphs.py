"""Which pass takes which CUDA graph, and that a graph reads only its buffer.

Captures are faked: work runs again.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, Sampling, Span, SpanState
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.worker import cuda_graphs as graphs
from holdfast.worker.cuda_graphs import CudaGraphs, Work
from holdfast.worker.input_batch import InputBatch, make_input_batch, send_batch
from support.fake_recorder import FakeRecorder

SAMPLING = Sampling(SamplingParams(), 0, 4)
CPU = torch.device("cpu")
SHORT, TALL = 4, 32
INDEX_ARRAYS = (
    "logits_indices",
    "ring_read_indices",
    "ring_read_slots",
    "ring_write_indices",
    "ring_write_slots",
)


class FakeDecoder:
    """Its hidden states are the inputs it read. It records the batch sizes it was called with."""

    backend = SimpleNamespace(device=CPU)
    config = SimpleNamespace(hidden_size=4)
    dtype = torch.float32

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []
        self.slots: list[int] = []
        self.replayed: list[int] = []

    def forward(self, rows: ForwardBatch, kv: Any, *, canonical: bool, layer_hook: Any = None) -> Tensor:
        assert rows.tiles is not None
        assert rows.tiles.shape == (rows.num_tokens, 6)
        assert rows.max_pages == 50
        self.seen.append((rows.num_tokens, canonical))
        self.slots = rows.slots.tolist()
        if rows.recurrent is not None:
            self.replayed.append(rows.recurrent.num_replayed)
        first_pages = torch.zeros(rows.num_tokens, dtype=torch.int64)
        for first, count, page, *_ in rows.tiles.tolist():
            first_pages[first : first + count] = rows.page_table.view(-1)[page]
        return torch.stack((rows.token_ids, rows.positions, rows.slots, first_pages), 1).float()

    def forward_body(
        self, rows: ForwardBatch, kv: Any, *, canonical: bool, layer_hook: Any = None
    ) -> tuple[Tensor, Tensor]:
        found = self.forward(rows, kv, canonical=canonical, layer_hook=layer_hook)
        return -found, found


def ends_early(num_tokens: int) -> bool:
    return num_tokens == 16


def tile_tokens(span_len: int) -> int:
    return SHORT if span_len <= SHORT else TALL


def batch(*spans: Span) -> InputBatch:
    return make_input_batch(Pass(PassKind.FAST, spans, 0), 4, tile_tokens)


def decode(count: int, num_pages: int = 3) -> InputBatch:
    return batch(
        *(
            Span(
                number,
                9,
                (number + 20,),
                tuple(range(number, number + num_pages)),
                0,
                SAMPLING,
                request_index=number,
            )
            for number in range(count)
        )
    )


@pytest.fixture
def decoder() -> FakeDecoder:
    return FakeDecoder()


@pytest.fixture
def captured(decoder: FakeDecoder) -> CudaGraphs:
    made = CudaGraphs(decoder, (), TALL, ends_early)  # type: ignore[arg-type]
    done: list[tuple[int, int]] = []
    recorder = FakeRecorder()
    made.capture([2, 8, 4], [16, 8], 50, recorder, lambda *progress: done.append(progress))
    assert done == [(number, 5) for number in range(1, 6)]
    assert recorder.num_recorded == 5
    return made


def test_capture_goes_from_largest_to_smallest_and_writes_no_slot(
    captured: CudaGraphs, decoder: FakeDecoder
) -> None:
    assert decoder.seen == [(16, True), (8, True), (8, False), (4, False), (2, False)]
    assert decoder.slots == [-1, -1]


@pytest.mark.parametrize(
    ("num_tokens", "canonical", "exact", "size"),
    [
        *((2, False, True, 2), (4, False, False, 4), (3, False, True, None), (3, False, False, 4)),
        *((5, False, False, 8), (9, False, False, None), (8, True, True, 8), (16, True, True, 16)),
        *((4, True, True, None), (2, True, True, None), (16, False, True, None), (17, True, True, None)),
    ],
)
def test_pass_takes_the_graph_of_its_size(
    captured: CudaGraphs, num_tokens: int, canonical: bool, exact: bool, size: int | None
) -> None:
    assert captured.size_for(decode(min(num_tokens, 3)), num_tokens, canonical=canonical, exact=exact) == size


def test_no_pass_fits_before_capture(decoder: FakeDecoder) -> None:
    fresh = CudaGraphs(decoder, (), TALL, ends_early)  # type: ignore[arg-type]
    assert fresh.size_for(decode(2), 2, canonical=False, exact=True) is None


def test_passes_too_large_for_a_graph_do_not_fit(
    captured: CudaGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fits(some: InputBatch) -> bool:
        return captured.size_for(some, 8, canonical=False, exact=True) == 8

    short = Span(1, 3, (1, 2, 3, 4), (0, 1), 0, SAMPLING)
    assert fits(batch(short, replace(short, request_id=2)))
    assert not fits(batch(replace(short, token_ids=(1, 2, 3, 4, 5)))), "a long span needs tall tiles"
    assert fits(decode(2, num_pages=50))
    assert not fits(decode(2, num_pages=51)), "a request longer than the captured maximum"
    monkeypatch.setattr(captured, "_buffer", captured._buffer[:200])
    assert fits(decode(2, num_pages=20))
    assert not fits(decode(8, num_pages=50)), "more pages than the buffer holds"


def test_a_graph_computes_so_many_earlier_tokens_again_at_most(
    decoder: FakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_MAX_REPLAYED", 20)
    layer = SimpleNamespace(states=SimpleNamespace(log_len=8))
    made = CudaGraphs(decoder, (layer,), TALL, ends_early)  # type: ignore[arg-type]
    made.capture([2, 8], [], 50, FakeRecorder())
    assert decoder.replayed == [20, 16]

    def size_for(count: int, num_replayed: int) -> int | None:
        states = [SpanState(number, 9 - num_replayed, 10) for number in range(count)]
        spans = [Span(one.slot, 9, (4,), (0, 1, 2), 0, SAMPLING, state=one) for one in states]
        return made.size_for(batch(*spans), 8, canonical=False, exact=True)

    assert size_for(5, 4) == 8 and size_for(2, 8) == 8
    assert size_for(7, 3) is None


@pytest.mark.parametrize("count", [3, 1, 8, 5])
def test_graph_reads_its_buffer(captured: CudaGraphs, decoder: FakeDecoder, count: int) -> None:
    """Compared with the same pass outside of a graph, whatever the pass before left in the buffer."""
    for some in (decode(8, num_pages=40), decode(count)):
        sent = captured.load(some, 8, canonical=False)
        hidden = captured.replay(8, canonical=False)
        alone = send_batch(some, 8, CPU)
        assert hidden[:, 0].tolist() == alone.forward.token_ids.tolist()
        assert hidden[:, 1].tolist() == alone.forward.positions.tolist()
        assert hidden[:, 2].tolist() == alone.forward.slots.tolist()
        assert hidden[: some.num_tokens, 3].tolist() == some.page_table[:, 0].tolist()
        for name in INDEX_ARRAYS:
            assert getattr(sent, name).tolist() == getattr(alone, name).tolist()


def test_token_ids_can_be_filled_in_between_load_and_replay(captured: CudaGraphs) -> None:
    sent = captured.load(decode(3), 4, canonical=False)
    sent.forward.token_ids[1] = 99
    assert captured.replay(4, canonical=False)[:, 0].tolist() == [20, 99, 22, 0]


def test_large_graph_ends_before_the_last_layer(captured: CudaGraphs) -> None:
    captured.load(decode(3), 16, canonical=True)
    found = captured.replay(16, canonical=True)
    assert found[:3, 0].tolist() == [20, 21, 22]
    assert torch.equal(captured.residual(16), -found)
    captured.load(decode(3), 8, canonical=True)
    assert torch.equal(captured.replay(8, canonical=True)[:3], found[:3])


def test_buffer_holds_every_pass_of_the_largest_size(
    decoder: FakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token is a request of its own, is read from the ring, sampled, and written to the ring."""
    monkeypatch.setattr(graphs, "_MAX_PAGE_ENTRIES", 64 * 50)
    made = CudaGraphs(decoder, (), TALL, ends_early)  # type: ignore[arg-type]
    made.capture([64], [], 50, FakeRecorder())
    spans = [
        Span(number, 9, (-1,), tuple(range(50)), 0, SAMPLING, request_index=number) for number in range(64)
    ]
    assert made.size_for(batch(*spans), 64, canonical=False, exact=True) == 64
    made.load(batch(*spans), 64, canonical=False)


def test_second_capture_drops_earlier_graphs(captured: CudaGraphs) -> None:
    captured.capture([2], [], 50, FakeRecorder())
    assert captured.size_for(decode(2), 2, canonical=False, exact=True) == 2
    assert captured.size_for(decode(2), 8, canonical=True, exact=True) is None


@pytest.mark.parametrize("lazily", [False, True])
def test_released_graphs_are_gone(decoder: FakeDecoder, lazily: bool) -> None:
    made = CudaGraphs(decoder, (), TALL, ends_early)  # type: ignore[arg-type]
    made.capture([2, 8], [8], 50, FakeRecorder(), lazily=lazily)
    made.release()
    for _ in range(2):
        assert made.size_for(decode(2), 2, canonical=False, exact=True) is None
    assert not made.capture_next() and not made._graphs


def test_large_graph_has_tall_tiles_for_long_spans(decoder: FakeDecoder) -> None:
    class Tiled(FakeDecoder):
        def forward(self, rows: ForwardBatch, kv: Any, *, canonical: bool, layer_hook: Any = None) -> Tensor:
            assert rows.tiles is not None
            self.tiles, self.short = rows.tiles[:, :3].tolist(), rows.num_short_tiles
            return torch.zeros(rows.num_tokens, 4)

    tiled = Tiled()
    made = CudaGraphs(tiled, (), TALL, lambda num_tokens: False)  # type: ignore[arg-type]
    made.capture([16, 1024], [], 50, FakeRecorder())
    single = Span(1, 9, (7,), (1, 2, 3), 0, SAMPLING)
    long = Span(2, 0, (5,) * 70, tuple(range(4, 24)), 69, SAMPLING)
    both = batch(single, long)
    assert made.size_for(both, 16, canonical=False, exact=True) is None, "a small graph has no tall tiles"
    assert made.size_for(both, 1024, canonical=False, exact=True) == 1024
    made.load(both, 1024, canonical=False)
    made.replay(1024, canonical=False)
    assert tiled.short == 512
    assert tiled.tiles[0] == [0, 1, 0] and not any(count for _, count, _ in tiled.tiles[1:512])
    assert tiled.tiles[512:515] == [[1, 32, 20], [33, 32, 20], [65, 6, 20]]
    assert not any(count for _, count, _ in tiled.tiles[515:])


class FailingRecorder(FakeRecorder):
    """Has memory for so many graphs."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def record(self, work: Work) -> Work:
        if self.num_recorded >= self._room:
            raise torch.OutOfMemoryError("out of memory")
        return super().record(work)


def test_lazy_graphs_are_captured_at_their_second_use_largest_first(decoder: FakeDecoder) -> None:
    made = CudaGraphs(decoder, (), TALL, ends_early)  # type: ignore[arg-type]
    recorder = FakeRecorder()
    made.capture([2, 8, 4], [16, 8], 50, recorder, lazily=True)
    assert recorder.num_recorded == 0
    one = decode(1)
    assert made.size_for(one, 1, canonical=False, exact=False) is None
    assert recorder.num_recorded == 0
    assert made.size_for(one, 1, canonical=False, exact=False) == 2
    assert sorted(made._graphs) == [(2, False), (8, False)]
    assert made.size_for(one, 2, canonical=False, exact=True) == 2
    assert recorder.num_recorded == 2
    while made.capture_next():
        pass
    assert recorder.num_recorded == 5


def test_larger_graph_is_used_until_a_better_one_is_worth_its_capture(decoder: FakeDecoder) -> None:
    made = CudaGraphs(decoder, (), TALL, ends_early)  # type: ignore[arg-type]
    made.capture([16, 18, 20, 24], [], 50, FakeRecorder(), lazily=True)

    def used(size: int, *larger_sizes: int, exact: bool = True) -> int | None:
        return made.size_for(decode(1), size, larger_sizes, canonical=False, exact=exact)

    assert [used(20), used(20)] == [None, 20]
    assert used(16, 18) is None, "no other size has the same bits"
    assert used(16, 18, 20, 24) == used(18, exact=False) == 20
    assert [used(16, 20) for _ in range(61)] == [20] * 61
    assert used(16, 20) == 16
    assert used(8, exact=False) == 16, "a graph of this size is not wanted"


def test_without_memory_for_a_graph_passes_run_without(
    decoder: FakeDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    made = CudaGraphs(decoder, (), TALL, ends_early)  # type: ignore[arg-type]
    made.capture([2, 8, 4], [], 50, FailingRecorder(2), lazily=True)
    one = decode(1)
    for size in (2, 4):
        assert made.size_for(one, size, canonical=False, exact=True) is None
    assert made.size_for(one, 2, canonical=False, exact=True) == 2  # 8 and 2
    assert made.size_for(one, 4, canonical=False, exact=True) is None
    assert made.size_for(one, 2, canonical=False, exact=True) == 2
    assert not made.capture_next()
    assert "run slower: out of memory" in caplog.text
