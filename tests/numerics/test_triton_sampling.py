"""Sampling kernels of the Triton backend against the torch backend: mixed batches, ties,
infinities, any vocabulary."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.core.step_plan import NO_TOKEN
from holdfast.numerics.backends.torch import sampling as torch_sampling
from holdfast.numerics.backends.torch.noise import noise
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import SamplingBatch

HAS_CUDA = torch.cuda.is_available()  # without a GPU: Triton's interpreter, on small vocabularies


@pytest.fixture
def triton(triton_kernels: str, open_any: Callable[..., Backend]) -> Backend:
    return open_any(triton_kernels, torch.float32)


def odd_logits(n: int, vocabulary: int, seed: int = 0) -> Tensor:
    """Rows of noise, among them ties, infinities and NaN."""
    logits = torch.randn(n, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3
    logits[1] = torch.round(logits[1])
    logits[2, ::2] = -math.inf
    logits[3] = 1.25
    logits[4, 5:] = math.nan
    logits[5, vocabulary // 2] = math.inf
    logits[6] = -math.inf
    logits[7, 0], logits[7, -1] = math.nan, 30.0
    return logits


def mixed_batch(n: int, seed: int = 0) -> SamplingBatch:
    """Rows with different settings: greedy, one limit, several limits, no limit."""
    some = torch.Generator().manual_seed(seed)
    place = torch.arange(n)
    return SamplingBatch(
        torch.where(place % 5 == 4, 0.0, 0.2 + torch.rand(n, generator=some) * 1.5),
        torch.where(place % 3 == 0, 0, torch.randint(1, 60, (n,), generator=some)).int(),
        torch.where(place % 4 == 0, 1.0, torch.rand(n, generator=some)),
        torch.where(place % 7 == 3, 0.05, 0.0),
        torch.randint(-(2**62), 2**62, (n,), generator=some),
        place * 3,
    )


def one_of(batch: SamplingBatch, i: int) -> SamplingBatch:
    return SamplingBatch(*(getattr(batch, field.name)[i : i + 1].clone() for field in fields(batch)))


@pytest.mark.parametrize(
    ("n", "vocabulary"),
    [(14, 501), (9, 4097), (8, 33), *([(24, 128_256), (24, 151_936)] if HAS_CUDA else [])],
)
def test_mixed_batch_follows_the_rule(triton: Backend, n: int, vocabulary: int) -> None:
    logits, batch = odd_logits(n, vocabulary), mixed_batch(n)
    assert triton.sample(logits, batch).tolist() == torch_sampling.sample(logits, batch).tolist()


def test_sampled_row_does_not_depend_on_the_batch(triton: Backend) -> None:
    logits, batch = odd_logits(9, 4099), mixed_batch(9, seed=3)
    whole, (ids, logprobs), sums = (
        triton.sample(logits, batch),
        triton.sample_greedy(logits),
        triton.logsumexp(logits),
    )
    for i in (1, 8):
        row = logits[i : i + 1]
        assert triton.sample(row, one_of(batch, i))[0] == whole[i]
        assert triton.sample_greedy(row)[0][0] == ids[i] and triton.sample_greedy(row)[1][0] == logprobs[i]
        assert triton.logsumexp(row)[0] == sums[i]


@pytest.mark.skipif(not HAS_CUDA, reason="slow in the interpreter")
def test_sampling_does_not_depend_on_the_activation_dtype(
    triton: Backend, triton_kernels: str, open_any: Callable[..., Backend]
) -> None:
    logits, batch = odd_logits(9, 501), mixed_batch(9)
    other = open_any(triton_kernels, torch.float16)
    assert torch.equal(triton.sample(logits, batch), other.sample(logits, batch))


def test_candidate_sets_too_large_to_copy(triton: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.numerics.backends.triton.sampler import thresholds

    logits, batch = odd_logits(8, 1500), mixed_batch(8, seed=4)
    expected = triton.sample(logits, batch)
    monkeypatch.setattr(thresholds, "_MAX_CANDIDATES", 16)
    assert torch.equal(triton.sample(logits, batch), expected)
    monkeypatch.setattr(thresholds, "_MIN_REFINED", 8)
    assert torch.equal(triton.sample(logits, batch), expected)
    assert torch.equal(torch_sampling.sample(logits, batch), expected)


def test_bins_with_many_tokens_are_divided_again(triton: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat rows: one limit each, then both; k above the number of possible tokens."""
    from holdfast.numerics.backends.triton.sampler import thresholds

    monkeypatch.setattr(thresholds, "_MIN_REFINED", 8)
    logits = torch.randn(6, 700, generator=torch.Generator().manual_seed(9)) * 0.3
    logits[5, 3:] = -math.inf
    batch = SamplingBatch(
        torch.full((6,), 0.8), torch.tensor([0, 300, 40, 500, 0, 5], dtype=torch.int32),
        torch.tensor([0.95, 1.0, 0.9, 0.6, 0.3, 0.9]), torch.zeros(6), torch.arange(6), torch.arange(6),
    )  # fmt: skip
    assert torch.equal(triton.sample(logits, batch), torch_sampling.sample(logits, batch))


def test_draws_are_kept_or_drawn_again(triton: Backend) -> None:
    """With top-p alone about as many draws are kept as top-p says, ties included."""
    from holdfast.numerics.backends.triton.sampler import early_draws, sampling

    n = 24
    logits = torch.randn(n, 300, generator=torch.Generator().manual_seed(2)) * 2
    logits[::3] = logits[::3].round()
    ones, off = torch.ones(n), torch.zeros(n)
    batch = SamplingBatch(ones, off.int(), ones * 0.6, off, torch.arange(n), torch.arange(n))
    kept: list[Tensor] = []

    def accept(*given: Any) -> tuple[Tensor, Tensor]:
        top_p, left = early_draws.accept_draws(*given)
        kept.append(top_p)
        return top_p, left

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampling, "accept_draws", accept)
        assert torch.equal(triton.sample(logits, batch), torch_sampling.sample(logits, batch))
    num_kept = [int((top_p == 1).sum()) for top_p in kept]
    assert n // 4 < num_kept[0] < num_kept[1] < n
    assert all(set(top_p.tolist()) == {1.0, batch.top_p[0].item()} for top_p in kept)


def test_extreme_limits(triton: Backend) -> None:
    """All tied, one kept, all but one kept, a top-p of 0, a top-p of nearly 1."""
    logits = torch.zeros(6, 70)
    logits[4] = torch.randn(70, generator=torch.Generator().manual_seed(1))
    logits[5] = logits[4]
    batch = SamplingBatch(
        torch.ones(6), torch.tensor([1, 69, 70, 5, 0, 0], dtype=torch.int32),
        torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.9999]), torch.zeros(6), torch.arange(6), torch.arange(6),
    )  # fmt: skip
    assert torch.equal(triton.sample(logits, batch), torch_sampling.sample(logits, batch))


def test_rows_without_a_token(triton: Backend) -> None:
    """No logit is a number, or min-p keeps none; in every way that a row is drawn."""
    logits, batch = odd_logits(9, 501), mixed_batch(9)
    expected = triton.sample(logits, batch)
    rows = [1, 3, 8]  # top-k and top-p, top-p, top-k
    for limits in ([1.5, math.nan, 1.5], [math.nan, 1.5, math.nan]):
        changed = SamplingBatch(*(getattr(batch, field.name).clone() for field in fields(batch)))
        changed.temperature[rows], changed.min_p[rows] = 0.9, torch.tensor(limits)
        found = triton.sample(logits, changed)
        assert found[rows].tolist() == [NO_TOKEN] * 3
        found[rows] = expected[rows]
        assert torch.equal(found, expected)
    assert expected[6] == triton.sample_greedy(logits)[0][6] == NO_TOKEN


def test_greedy_and_logsumexp_match_torch(triton: Backend) -> None:
    logits = odd_logits(9, 9001)
    ids, logprobs = triton.sample_greedy(logits)
    assert torch.equal(ids, torch_sampling.argmax(logits))
    totals = triton.logsumexp(logits)
    torch.testing.assert_close(totals, torch_sampling.logsumexp(logits), rtol=3e-7, atol=2e-6)
    argmax = torch.nan_to_num(logits, nan=-math.inf, posinf=math.inf, neginf=-math.inf).gather(
        1, ids[:, None].clamp(min=0)
    )[:, 0]
    assert torch.equal(logprobs.nan_to_num(), (argmax - totals).nan_to_num())


@pytest.mark.parametrize(("vocabulary", "k"), [(300, 20), (3, 10), (16389, 4)])
def test_triton_topk_orders_by_value_then_id(triton: Backend, vocabulary: int, k: int) -> None:
    logits = odd_logits(8, max(vocabulary, 12))[:, :vocabulary].contiguous()
    values, ids = triton.topk(logits, k)
    wanted_values, wanted_ids = torch_sampling.topk(logits, k)
    assert torch.equal(ids, wanted_ids) and torch.equal(values, wanted_values)


def test_triton_noise_is_the_documented_function(triton: Backend) -> None:
    """With equal logits the sampled token is the one with the largest noise."""
    n, vocabulary = 12, 6000
    seeds = torch.randint(-(2**62), 2**62, (n,), generator=torch.Generator().manual_seed(8))
    off, ones = torch.zeros(n), torch.ones(n)
    batch = SamplingBatch(ones, off.int(), ones, off, seeds, torch.arange(n) * 100003)
    chosen = triton.sample(torch.zeros(n, vocabulary), batch).tolist()
    ids = np.arange(vocabulary)
    for i, token in enumerate(chosen):
        assert token == int(np.argmax(noise(int(seeds[i]), i * 100003, ids)))
