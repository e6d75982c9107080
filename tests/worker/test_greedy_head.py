"""Greedy rows that end in a graph: the sampler's tokens and bits, and only where nothing else is asked."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.core.grammar import Constraint
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, Sampled, Sampling, Span
from holdfast.models.decoder import Decoder
from holdfast.worker.greedy_head import GreedyHeadGraph
from holdfast.worker.input_batch import InputBatch, make_input_batch
from holdfast.worker.sampler import sample
from holdfast.worker.transfer import HostCopies
from support.fake_recorder import FakeRecorder
from worker.sampler_spans import ToldGrammar, mask, parts

SIZES, CANONICAL = (1, 3, 8, 600), (8,)
GREEDY = Sampling(SamplingParams(temperature=0), 0, 4)
ROW = Span(1, 9, (7,), (0,), 0, GREEDY, logprobs=0)


@pytest.fixture
def hidden(decoder: Decoder) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(600, decoder.config.hidden_size, generator=generator).to(decoder.dtype)


@pytest.fixture
def end(decoder: Decoder, hidden: Tensor) -> GreedyHeadGraph:
    made, recorder = GreedyHeadGraph(decoder), FakeRecorder()
    with torch.inference_mode():
        made.capture(hidden, SIZES, CANONICAL, recorder)
    assert recorder.num_recorded == 4, "none for more rows than a head takes at a time"
    return made


def batch(*spans: Span) -> InputBatch:
    return make_input_batch(Pass(PassKind.FAST, spans, 0), 16)


def by_the_sampler(decoder: Decoder, hidden: Tensor, spans: list[Span]) -> list[Sampled]:
    with torch.inference_mode():
        logits = decoder.logits(hidden[: len(spans)], canonical=True)
        up = HostCopies(torch.device("cpu"))
        return sample(decoder.backend, logits, parts(*spans), up).read()


@pytest.mark.parametrize("logprobs", [(0,), (None,), (0, None, None)])
@pytest.mark.parametrize("count", [8, 5, 1])
def test_tokens_and_logprobs_are_the_samplers(
    decoder: Decoder, hidden: Tensor, end: GreedyHeadGraph, count: int, logprobs: tuple[int | None, ...]
) -> None:
    spans = [replace(ROW, request_id=n, logprobs=logprobs[n % len(logprobs)]) for n in range(count)]
    assert end.fits(8, batch(*spans), spans, canonical=True)
    with torch.inference_mode():
        found = end.sample(8, count, spans, HostCopies(torch.device("cpu")), canonical=True)
    expected = by_the_sampler(decoder, hidden, spans)
    assert found.read() == expected
    assert found.token_ids.tolist() == [each.token_id for each in expected]


def test_what_the_next_pass_leaves_is_read_by_the_next(
    decoder: Decoder, hidden: Tensor, end: GreedyHeadGraph
) -> None:
    spans, copies = [ROW] * 3, HostCopies(torch.device("cpu"))
    with torch.inference_mode():
        first = end.sample(3, 3, spans, copies, canonical=False).read()
        hidden[:3] = hidden[3:6].clone()
        second = end.sample(3, 3, spans, copies, canonical=False).read()
    assert first != second
    assert [each.token_id for each in second] == [
        each.token_id for each in by_the_sampler(decoder, hidden, spans)
    ]


@pytest.mark.parametrize(
    "other",
    [
        replace(ROW, logprobs=1),
        replace(ROW, with_checksums=True),
        replace(ROW, constraint=Constraint(ToldGrammar(lambda candidates, count: [mask(3)] * count), ())),
        replace(ROW, sampling=Sampling(SamplingParams(temperature=0.1), 0, 4)),
        replace(ROW, sampling=Sampling(SamplingParams(temperature=0, logit_bias={3: 1.0}), 0, 4)),
        replace(
            ROW, sampling=Sampling(SamplingParams(temperature=0, min_tokens=2), 0, 4, suppressed_ids=(3,))
        ),
        replace(ROW, token_ids=(7, 8), sample_from=1),
        replace(ROW, token_ids=(7, 8), sample_from=1, scored_ids=(8,)),
    ],
)
def test_whoever_asks_for_more_goes_to_the_sampler(end: GreedyHeadGraph, other: Span) -> None:
    for spans in ([ROW, other], [other, ROW]):
        assert not end.fits(8, batch(*spans), spans, canonical=False)
    assert end.fits(8, batch(ROW, ROW), [ROW, ROW], canonical=False)


def test_windows_of_greedy_rows_end_here_too(decoder: Decoder, hidden: Tensor, end: GreedyHeadGraph) -> None:
    window = replace(ROW, token_ids=(7, 8, 9))
    assert end.fits(8, batch(window, ROW), [window, ROW], canonical=True)
    with torch.inference_mode():
        found = end.sample(8, 4, [window, ROW], HostCopies(torch.device("cpu")), canonical=True).read()
    assert found == by_the_sampler(decoder, hidden, [ROW] * 4)


def test_only_what_was_captured_fits(decoder: Decoder, end: GreedyHeadGraph) -> None:
    one = batch(ROW)
    assert [size for size in (1, 2, 3, 8, 600) if end.fits(size, one, [ROW], canonical=False)] == [1, 3, 8]
    assert [size for size in (1, 2, 3, 8, 600) if end.fits(size, one, [ROW], canonical=True)] == [8]
    nothing = replace(ROW, sample_from=1)
    assert not end.fits(8, batch(nothing), [nothing], canonical=False), "no row is wanted"
    assert not GreedyHeadGraph(decoder).fits(8, one, [ROW], canonical=False)
