"""The sampler: logprobs, ties, masks, noise, and rows without a token. Windows and neighbours are in
test_sampler_features.py."""

from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import NO_TOKEN, Sampled, Span
from holdfast.numerics.ops import Backend
from holdfast.worker.sampler import sample
from holdfast.worker.spot_check import logits_checksums
from holdfast.worker.transfer import HostCopies
from worker.sampler_spans import VOCAB, mask, slices_of
from worker.sampler_spans import span as span_of

CPU = torch.device("cpu")
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=0.9),
    "truncated": SamplingParams(temperature=1.3, top_k=20, top_p=0.8, min_p=0.02),
}


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(12, VOCAB, generator=torch.Generator().manual_seed(2)) * 3


def span(start: int, count: int, params: SamplingParams, **asked: Any) -> Span:
    """A span whose tokens do not matter."""
    return span_of([0] * (start + count), count, params, **asked)


def one(backend: Backend, logits: Tensor, *spans: Span, masks: Any = None) -> list[Sampled]:
    up = HostCopies(CPU)
    return sample(backend, logits.clone(), slices_of(*spans, masks=masks), up).read()


@pytest.mark.parametrize("kind", SETTINGS)
def test_logprobs_change_no_token(backend: Backend, logits: Tensor, kind: str) -> None:
    plain = one(backend, logits, span(9, 12, SETTINGS[kind]))
    asked = one(backend, logits, span(9, 12, SETTINGS[kind], logprobs=7))
    assert [each.token_id for each in plain] == [each.token_id for each in asked]
    assert all(each.logprob is None for each in plain)


@pytest.mark.parametrize("kind", SETTINGS)
def test_logprobs_are_those_of_the_raw_logits(backend: Backend, logits: Tensor, kind: str) -> None:
    """Before temperature, masks and truncation: greedy and sampled requests report the same
    numbers.
    """
    forbidden = tuple(logits.argmax(-1).tolist())
    params = SamplingParams(**{**vars(SETTINGS[kind]), "min_tokens": 16})
    found = one(backend, logits, span(9, 12, params, logprobs=4, prompt_len=10, forbidden=forbidden))
    expected = logits.double().log_softmax(-1)
    for row, each in enumerate(found):
        assert each.logprob is not None
        assert each.logprob.token_id == each.token_id
        assert each.logprob.logprob == pytest.approx(expected[row, each.token_id].item(), abs=1e-5)
        ids = [token_id for token_id, _ in each.logprob.top]
        assert ids == expected[row].topk(4).indices.tolist()
        assert [value for _, value in each.logprob.top] == pytest.approx(
            expected[row, ids].tolist(), abs=1e-5
        )


def test_logprob_of_the_token_has_the_same_bits_in_the_top_list(backend: Backend, logits: Tensor) -> None:
    for each in one(backend, logits, span(9, 12, SETTINGS["greedy"], logprobs=1)):
        assert each.logprob is not None
        assert each.logprob.top == ((each.token_id, each.logprob.logprob),)
    for each in one(backend, logits, span(9, 12, SETTINGS["greedy"], logprobs=0)):
        assert each.logprob is not None and each.logprob.top == ()


def test_ties_go_to_the_lowest_token_id(backend: Backend) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [150, 30, 31]] = 2.0
    (found,) = one(backend, logits, span(9, 1, SETTINGS["greedy"], logprobs=5))
    assert found.token_id == 30
    assert found.logprob is not None
    assert [token_id for token_id, _ in found.logprob.top] == [30, 31, 150, 0, 1]


def test_more_logprobs_than_the_vocabulary_reports_all_tokens(backend: Backend) -> None:
    (found,) = one(backend, torch.randn(1, 7), span(9, 1, SETTINGS["greedy"], logprobs=50))
    assert found.logprob is not None
    assert sorted(token_id for token_id, _ in found.logprob.top) == list(range(7))


def test_stop_tokens_are_masked_until_min_tokens(backend: Backend) -> None:
    """Tokens of one window before and after min_tokens."""
    logits = torch.zeros(6, VOCAB)
    logits[:, 8] = 5.0
    logits[:, 3] = 4.0
    params = SamplingParams(temperature=0, min_tokens=4)
    found = one(backend, logits, span(9, 6, params, prompt_len=10, forbidden=(8,)))
    # Position 10 is the first answer token. Answer tokens 1 .. 4 must not be 8: the fourth may not end it yet.
    assert [each.token_id for each in found] == [3, 3, 3, 3, 8, 8]


def test_noise_depends_on_position_and_seed(backend: Backend) -> None:
    logits = torch.zeros(40, VOCAB)
    params = SamplingParams(temperature=1)
    first = [each.token_id for each in one(backend, logits, span(9, 40, params, seed=1))]
    moved = [each.token_id for each in one(backend, logits, span(10, 40, params, seed=1))]
    other = [each.token_id for each in one(backend, logits, span(9, 40, params, seed=2))]
    assert first[1:] == moved[:-1]
    assert len(set(first)) > 20
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 5


def test_largest_seed_is_accepted(backend: Backend, logits: Tensor) -> None:
    params = SamplingParams(temperature=1)
    largest = one(backend, logits, span(9, 12, params, seed=(1 << 64) - 1))
    assert largest == one(backend, logits, span(9, 12, params, seed=(1 << 64) - 1))
    assert largest != one(backend, logits, span(9, 12, params, seed=(1 << 63) - 1))


def test_fully_masked_logits_give_no_token(backend: Backend, logits: Tensor) -> None:
    """And no logprob. Its neighbours are not affected."""
    for kind in SETTINGS.values():
        cornered = SamplingParams(**{**vars(kind), "allowed_token_ids": [3], "bad_token_ids": [3]})
        spans = (span(9, 2, kind, logprobs=2), span(9, 2, cornered, logprobs=2), span(9, 2, kind, logprobs=2))
        found = one(backend, logits[:6], *spans, masks=[(), (), (None, b"")])
        assert found[2:4] == [Sampled(NO_TOKEN)] * 2
        assert found[5] == Sampled(NO_TOKEN)
        alone = one(backend, logits[:5], *(span(9 + row, 1, kind, logprobs=2) for row in (0, 1, 0, 1, 0)))
        assert (found[:2], found[4]) == (alone[:2], alone[4])


@pytest.mark.parametrize("value", [-torch.inf, torch.nan])
def test_logits_without_a_number_give_no_token(backend: Backend, logits: Tensor, value: float) -> None:
    """And no logprob, asked in any way. Its neighbours are not affected."""
    logits[3] = value
    for kind in SETTINGS.values():
        for logprobs in (None, 0, 2):
            found = one(backend, logits, span(9, 12, kind, logprobs=logprobs))
            assert found[3] == Sampled(NO_TOKEN)
            assert found[:3] == one(backend, logits[:3], span(9, 3, kind, logprobs=logprobs))
            assert found[4:] == one(backend, logits[4:], span(13, 8, kind, logprobs=logprobs))


def test_only_allowed_token_is_chosen(backend: Backend, logits: Tensor) -> None:
    worst = logits.argmin(-1).tolist()
    for kind in SETTINGS.values():
        masks = tuple(mask(token_id) for token_id in worst)
        found = one(backend, logits, span(9, 12, kind, logprobs=0), masks=[masks])
        assert [each.token_id for each in found] == worst


def test_checksums_are_those_of_the_raw_logits(backend: Backend, logits: Tensor) -> None:
    biased = SamplingParams(temperature=0, logit_bias={3: 50.0})
    spans = (span(9, 5, SETTINGS["greedy"]), span(9, 7, biased, with_checksums=True))
    found = one(backend, logits, *spans)
    assert [each.logits_checksum for each in found] == [None] * 5 + logits_checksums(logits).tolist()[5:]
    assert [each.token_id for each in found[5:]] == [3] * 7
    (alone,) = one(backend, logits[6:7], span(9, 1, SETTINGS["sampled"], with_checksums=True))
    assert alone.logits_checksum == found[6].logits_checksum
