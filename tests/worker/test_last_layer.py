"""Large passes run the last layer only for tokens whose logits are needed, with the same bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampling, Span, StepPlan
from holdfast.models.decoder import Decoder
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.worker.head import LastLayer, logits_batch
from holdfast.worker.input_batch import DeviceBatch, InputBatch, make_input_batch, send_batch
from holdfast.worker.kv_store import KVStore
from holdfast.worker.model_runner import ModelRunner
from support.fake_recorder import FakeRecorder

PROMPT = tuple(torch.randint(3, 320, (150,), generator=torch.Generator().manual_seed(8)).tolist())
HOW = Sampling(SamplingParams(temperature=0.7, seed=3, prompt_logprobs=2), 3, 150)
LONG = Span(1, 0, PROMPT, (5, 9, 2, 7, 0, 11, 3, 8, 1, 10), 149, HOW, logprobs=2)
MIDDLE = Span(2, 20, PROMPT[20:60], (4, 6, 12, 13), 40, HOW)
ROW = Span(3, 33, (17,), (14, 15, 16), 0, HOW, logprobs=0)


@pytest.fixture
def separate_runs(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """For each separate run of the last layer: the number of tokens, and whether it was canonical."""
    seen: list[tuple[int, bool]] = []
    end = decoder.forward_last_layer

    def noting(residual: Tensor, x: Tensor, rows: ForwardBatch, kv: Any, *, canonical: bool) -> Tensor:
        seen.append((rows.num_tokens, canonical))
        return end(residual, x, rows, kv, canonical=canonical)

    monkeypatch.setattr(decoder, "forward_last_layer", noting)
    return seen


def run(decoder: Decoder, *spans: Span, whole: bool, **how: Any) -> tuple[PassResult, KVStore]:
    store = KVStore(24, decoder.config, decoder.backend)
    generator = torch.Generator().manual_seed(4)
    for layer in store.layers:
        for tensor in (layer.keys, layer.values):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    runner = ModelRunner(decoder, store)
    if whole:
        runner._last_layer = LastLayer(decoder, store.layers, needs_all_tokens=True)
    one = Pass(spans=spans, num_tokens_padded=256, **{"kind": PassKind.CANONICAL, **how})
    (result,) = runner.run(StepPlan((one,)))
    return result, store


def assert_same(one: tuple[PassResult, KVStore], other: tuple[PassResult, KVStore]) -> None:
    assert one[0] == other[0]
    for mine, theirs in zip(one[1].layers, other[1].layers, strict=True):
        assert torch.equal(mine.keys, theirs.keys) and torch.equal(mine.values, theirs.values)


@pytest.mark.parametrize(
    ("spans", "num_logits"),
    [
        ((LONG,), 1),
        ((MIDDLE, LONG, ROW), 2),
        ((replace(LONG, scored_ids=PROMPT[100:140]), ROW), 42),
        ((replace(LONG, sample_from=90), MIDDLE), 60),
    ],
)
def test_separate_last_layer_gives_the_bits_of_a_whole_pass(
    decoder: Decoder, separate_runs: list[tuple[int, bool]], spans: tuple[Span, ...], num_logits: int
) -> None:
    few = run(decoder, *spans, whole=False)
    assert separate_runs == [(num_logits, True)]
    assert_same(few, run(decoder, *spans, whole=True))
    assert separate_runs == [(num_logits, True)]


def test_last_layer_does_not_run_if_no_logits_are_needed(
    decoder: Decoder, separate_runs: list[tuple[int, bool]]
) -> None:
    spans = (MIDDLE, replace(LONG, sample_from=150))
    few = run(decoder, *spans, whole=False)
    assert few[0].samples == ((), ()) and separate_runs == []
    assert_same(few, run(decoder, *spans, whole=True))


def test_last_layer_is_not_separate_if_many_logits_are_needed(
    decoder: Decoder, separate_runs: list[tuple[int, bool]]
) -> None:
    run(decoder, replace(LONG, sample_from=0), whole=False)
    assert separate_runs == []


@pytest.mark.parametrize("how", [{"kind": PassKind.FAST}, {"certified": True}])
def test_separate_last_layer_is_canonical_only_in_canonical_passes(
    decoder: Decoder, separate_runs: list[tuple[int, bool]], how: dict[str, Any]
) -> None:
    """A certified pass is fast, but the number of tokens in its separate last layer is not
    certified.
    """
    few, _ = run(decoder, LONG, ROW, whole=False, **how)
    whole, _ = run(decoder, LONG, ROW, whole=True, **how)
    assert separate_runs == [(2, "certified" in how)]
    for (mine,), (theirs,) in zip(few.samples, whole.samples, strict=True):
        assert mine.logprob is not None and theirs.logprob is not None
        assert mine.token_id == theirs.token_id
        assert mine.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=0.05)


def test_last_layer_is_never_separate_if_all_tokens_are_needed(decoder: Decoder) -> None:
    last = LastLayer(decoder, (), needs_all_tokens=True)
    assert not last.is_separate(8192) and not last.is_separate(8192, 0)


def test_last_layer_is_separate_above_a_ratio(decoder: Decoder) -> None:
    last, slab = LastLayer(decoder, (), needs_all_tokens=False), decoder.backend.recipe.rows
    assert last.is_separate(4 * slab) and last.is_separate(4 * slab, slab) and last.is_separate(1, 0)
    assert not last.is_separate(4 * slab - 1) and not last.is_separate(4 * slab, slab + 1)


def test_graph_that_ends_early_is_completed_for_all_tokens_if_many_logits_are_needed(
    decoder: Decoder,
) -> None:
    store = KVStore(24, decoder.config, decoder.backend)
    last = LastLayer(decoder, store.layers, needs_all_tokens=False)
    one = Pass(PassKind.CANONICAL, (replace(LONG, sample_from=60), ROW), 160)
    batch = make_input_batch(one, decoder.backend.page_size)
    with torch.inference_mode():
        sent = send_batch(batch, 160, torch.device("cpu"))
        whole = decoder.forward(sent.forward, store.layers, canonical=True)[sent.logits_indices]
        left = decoder.forward_body(sent.forward, store.layers, canonical=True)
        found = last.run(batch, sent, left, canonical=True, exact=True)
    assert len(found) == 91 and torch.equal(found, whole)


class EarlyGraphs:
    """In place of `CudaGraphs` on a CPU: every pass takes a graph of 64 tokens that ends before the
    last layer.
    """

    def __init__(self, decoder: Decoder, store: KVStore) -> None:
        self._decoder, self._store = decoder, store
        self.output = torch.zeros(64, decoder.config.hidden_size, dtype=decoder.dtype)

    def size_for(self, *_: object, canonical: bool, exact: bool) -> int:
        return 64

    def load(self, batch: InputBatch, size: int, *, canonical: bool) -> DeviceBatch:
        self._sent = send_batch(batch, size, torch.device("cpu"))
        return self._sent

    def replay(self, size: int, *, canonical: bool) -> Tensor:
        left = self._decoder.forward_body(self._sent.forward, self._store.layers, canonical=canonical)
        self._residual = left[0]
        self.output.copy_(left[1])
        return self.output

    def residual(self, size: int) -> Tensor:
        return self._residual


def test_graph_that_ends_early_does_not_take_the_greedy_head(decoder: Decoder) -> None:
    """Even if a greedy head was captured for this size."""
    assert LastLayer(decoder, (), needs_all_tokens=False).is_separate(64)
    greedy = Sampling(SamplingParams(temperature=0), 0, 150)
    one = Pass(
        PassKind.CANONICAL,
        (replace(LONG, token_ids=PROMPT[:1], sample_from=0, sampling=greedy, logprobs=0),),
        64,
    )
    plain, captured = (ModelRunner(decoder, KVStore(24, decoder.config, decoder.backend)) for _ in range(2))
    graphs = EarlyGraphs(decoder, captured._store)
    captured._graphs = graphs  # type: ignore[assignment]
    with torch.inference_mode():
        captured._head_graphs.capture(graphs.output, [64], [64], FakeRecorder())
    assert captured.run(StepPlan((one,))) == plain.run(StepPlan((one,)))


def test_logits_batch_has_one_span_per_token() -> None:
    batch = make_input_batch(
        Pass(PassKind.FAST, (MIDDLE, replace(LONG, scored_ids=PROMPT[:3]), ROW), 0), 16, lambda n: 8
    )
    few = logits_batch(batch)
    assert few.positions.tolist() == [146, 147, 148, 149, 33]
    assert few.span_starts.tolist() == [0, 1, 2, 3, 4, 5]
    assert few.page_table[3:, :3].tolist() == [[5, 9, 2], [14, 15, 16]]
    assert np.array_equal(few.slots, batch.slots[batch.logits_indices])
    width = batch.page_table.shape[1]
    assert (
        few.tiles[:, :3].tolist() == [[row, 1, row * width] for row in range(5)] and few.num_short_tiles == 5
    )
