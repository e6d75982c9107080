"""Head graphs: the tokens and logprob bits of the sampler, and which passes take them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import NO_TOKEN, Pass, PassKind, Sampled, Sampling, Span
from holdfast.core.structured_output import Constraint
from holdfast.models.decoder import Decoder
from holdfast.numerics.sampling import SamplingBatch
from holdfast.worker.head import HeadGraphs
from holdfast.worker.input_batch import InputBatch, make_input_batch
from holdfast.worker.sampler import sample
from holdfast.worker.transfer import HostCopies
from support.fake_recorder import FakeRecorder
from worker.sampler_spans import FixedGrammar, mask, slices_of

SIZES, CANONICAL = (1, 3, 8, 600), (8,)
GREEDY = Sampling(SamplingParams(temperature=0), 0, 4)
TOKEN = Span(1, 9, (7,), (0,), 0, GREEDY, logprobs=0)
SAMPLED = replace(TOKEN, sampling=Sampling(SamplingParams(temperature=0.9, top_p=0.9), 5, 4))


@pytest.fixture(scope="module")
def hidden(decoder: Decoder) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(600, decoder.config.hidden_size, generator=generator).to(decoder.dtype)


@pytest.fixture(scope="module")
def head(decoder: Decoder, hidden: Tensor) -> HeadGraphs:
    made, recorder = HeadGraphs(decoder), FakeRecorder()
    with torch.inference_mode():
        made.capture(hidden, SIZES, CANONICAL, recorder)
    assert recorder.num_recorded == 8, "none for more tokens than a head takes at once"
    return made


def batch(*spans: Span) -> InputBatch:
    return make_input_batch(Pass(PassKind.FAST, spans, 0), 16)


def sampled_by_sampler(decoder: Decoder, hidden: Tensor, spans: list[Span]) -> list[Sampled]:
    with torch.inference_mode():
        logits = decoder.logits(hidden[: len(spans)], canonical=True)
        copies = HostCopies(torch.device("cpu"))
        return sample(decoder.backend, logits, slices_of(*spans), copies).read()


@pytest.mark.parametrize("logprobs", [(0,), (None,), (0, None, None)])
@pytest.mark.parametrize("count", [8, 5, 1])
def test_head_graph_gives_the_samplers_tokens_and_logprobs(
    decoder: Decoder, hidden: Tensor, head: HeadGraphs, count: int, logprobs: tuple[int | None, ...]
) -> None:
    spans = [replace(TOKEN, request_id=n, logprobs=logprobs[n % len(logprobs)]) for n in range(count)]
    assert head.fits(8, batch(*spans), spans, canonical=True)
    with torch.inference_mode():
        found = head.sample(8, count, spans, HostCopies(torch.device("cpu")), canonical=True)
    expected = sampled_by_sampler(decoder, hidden, spans)
    assert found.read() == expected
    assert found.token_ids.tolist() == [each.token_id for each in expected]


@pytest.mark.parametrize("canonical", [False, True])
def test_sampled_and_greedy_tokens_share_a_head_graph(
    decoder: Decoder, hidden: Tensor, head: HeadGraphs, canonical: bool
) -> None:
    """A step with settings, one without, one with others: nothing is left of the settings before."""
    settings = [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_p=0.8, min_p=0.01),
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.0, top_k=5, top_p=0.9),
    ]
    spans = [
        replace(TOKEN, start=9 + n, sampling=Sampling(one, 2**63 + n, 4), logprobs=(0, None)[n % 2])
        for n, one in enumerate(settings)
    ]
    for some in (spans, [TOKEN] * 3, spans[::-1], [*spans, *spans[::-1]]):
        assert head.fits(8, batch(*some), some, canonical=canonical)
        with torch.inference_mode():
            found = head.sample(8, len(some), some, HostCopies(torch.device("cpu")), canonical=canonical)
            assert found.read() == sampled_by_sampler(decoder, hidden, some)


def test_sampled_window_takes_a_head_graph(decoder: Decoder, hidden: Tensor, head: HeadGraphs) -> None:
    """Each token of the window has a position of its own; a span without a sampled token has none."""
    window = replace(SAMPLED, token_ids=(7, 8, 9))
    spans = [window, TOKEN, replace(TOKEN, sample_from=1)]
    assert head.fits(8, batch(*spans), spans, canonical=True)
    with torch.inference_mode():
        found = head.sample(8, 4, spans, HostCopies(torch.device("cpu")), canonical=True).read()
    tokens = [replace(SAMPLED, start=SAMPLED.start + n) for n in range(3)]
    assert found == sampled_by_sampler(decoder, hidden, [*tokens, TOKEN])


def test_graph_is_captured_without_the_settings_of_the_last_pass(
    decoder: Decoder, hidden: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the layout of another size: random seeds would be temperatures and probabilities, and
    leave rows without a token."""
    seen: list[float] = []
    sample_rows = decoder.backend.sample

    def recording(logits: Tensor, batch: SamplingBatch) -> Tensor:
        seen.extend(part.abs().max().item() for part in vars(batch).values())
        return sample_rows(logits, batch)

    monkeypatch.setattr(decoder.backend, "sample", recording)
    made = HeadGraphs(decoder)
    with torch.inference_mode():
        made.capture(hidden, SIZES, (), FakeRecorder(), lazily=True)
        for size in (8, 1, 3):
            spans = [
                replace(SAMPLED, sampling=replace(SAMPLED.sampling, seed=2**53 - n)) for n in range(size)
            ]
            seen.clear()
            assert made.fits(size, batch(*spans), spans, canonical=False)
            assert seen == [0.0] * 6
            made.sample(size, size, spans, HostCopies(torch.device("cpu")), canonical=False)
            assert max(seen) > 2**52


def test_row_without_a_number_gives_no_token_and_no_logprob(decoder: Decoder, hidden: Tensor) -> None:
    broken = hidden[:8].clone()
    broken[2] = torch.nan
    made = HeadGraphs(decoder)
    for spans in ([TOKEN] * 4, [TOKEN, SAMPLED, SAMPLED, replace(SAMPLED, logprobs=None)]):
        with torch.inference_mode():
            made.capture(broken, (8,), (), FakeRecorder())
            found = made.sample(8, 4, spans, HostCopies(torch.device("cpu")), canonical=False).read()
        assert found[2] == Sampled(NO_TOKEN)
        assert found == sampled_by_sampler(decoder, broken, spans)


def test_head_graph_reads_the_hidden_states_of_each_pass(
    decoder: Decoder, hidden: Tensor, head: HeadGraphs
) -> None:
    spans, copies = [TOKEN] * 3, HostCopies(torch.device("cpu"))
    before = hidden.clone()
    with torch.inference_mode():
        first = head.sample(3, 3, spans, copies, canonical=False).read()
        hidden[:3] = before[3:6]
        second = head.sample(3, 3, spans, copies, canonical=False).read()
        hidden.copy_(before)
    assert first != second
    assert [each.token_id for each in second] == [
        each.token_id for each in sampled_by_sampler(decoder, before[3:], spans)
    ]


@pytest.mark.parametrize(
    "other",
    [
        replace(TOKEN, logprobs=1),
        replace(TOKEN, with_checksums=True),
        replace(TOKEN, constraint=Constraint(FixedGrammar(lambda candidates, count: [mask(3)] * count), ())),
        replace(TOKEN, sampling=Sampling(SamplingParams(temperature=0, logit_bias={3: 1.0}), 0, 4)),
        replace(
            TOKEN, sampling=Sampling(SamplingParams(temperature=0, min_tokens=2), 0, 4, suppressed_ids=(3,))
        ),
        replace(TOKEN, token_ids=(7, 8), sample_from=1),
        replace(TOKEN, token_ids=(7, 8), sample_from=1, scored_ids=(8,)),
    ],
)
def test_spans_with_other_settings_take_no_head_graph(head: HeadGraphs, other: Span) -> None:
    for plain in (TOKEN, SAMPLED):
        for spans in ([plain, other], [other, plain]):
            assert not head.fits(8, batch(*spans), spans, canonical=False)
        assert head.fits(8, batch(plain, plain), [plain, plain], canonical=False)


def test_only_captured_sizes_take_a_head_graph(decoder: Decoder, head: HeadGraphs) -> None:
    one = batch(TOKEN)
    assert [size for size in (1, 2, 3, 8, 600) if head.fits(size, one, [TOKEN], canonical=False)] == [1, 3, 8]
    assert [size for size in (1, 2, 3, 8, 600) if head.fits(size, one, [TOKEN], canonical=True)] == [8]
    released = HeadGraphs(decoder)
    for lazily in (False, True):
        with torch.inference_mode():
            released.capture(head._hidden, SIZES, CANONICAL, FakeRecorder(), lazily=lazily)
        released.release()
        assert not released.fits(8, one, [TOKEN], canonical=False) and not released.capture_next()
    nothing = replace(TOKEN, sample_from=1)
    assert not head.fits(8, batch(nothing), [nothing], canonical=False), "no logits are needed"
    assert not HeadGraphs(decoder).fits(8, one, [TOKEN], canonical=False)
