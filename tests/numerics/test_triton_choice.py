"""Triton's choice of tokens against the library's rule: mixed batches, ties, infinities, vocabularies of any size."""

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.numerics.backends.torch import sampling as library_choice
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import SamplingBatch


@pytest.fixture
def ops(triton_path: str, open_path: Callable[..., Backend]) -> Backend:
    return open_path(triton_path, torch.float32)


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
    """Every row its own settings; greedy rows, rows of one limit, of several and of none."""
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


@pytest.mark.parametrize(("n", "vocabulary"), [(14, 501), (9, 4097), (8, 33)])
def test_a_mixed_batch_follows_the_rule(ops: Backend, n: int, vocabulary: int) -> None:
    logits, batch = odd_logits(n, vocabulary), mixed_batch(n)
    assert ops.sample(logits, batch).tolist() == library_choice.choose(logits, batch).tolist()


def test_a_row_is_chosen_alone_as_among_others(ops: Backend) -> None:
    logits, batch = odd_logits(9, 4099), mixed_batch(9, seed=3)
    whole, (ids, logprobs), totals = (
        ops.sample(logits, batch),
        ops.sample_greedy(logits),
        ops.logsumexp(logits),
    )
    for i in (1, 8):
        row = logits[i : i + 1]
        assert ops.sample(row, one_of(batch, i))[0] == whole[i]
        assert ops.sample_greedy(row)[0][0] == ids[i] and ops.sample_greedy(row)[1][0] == logprobs[i]
        assert ops.logsumexp(row)[0] == totals[i]


def test_sets_too_large_to_be_copied(ops: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.numerics.backends.triton import thresholds as edges

    logits, batch = odd_logits(8, 1500), mixed_batch(8, seed=4)
    expected = ops.sample(logits, batch)
    monkeypatch.setattr(edges, "_ROOM", 16)
    assert torch.equal(ops.sample(logits, batch), expected)
    assert torch.equal(library_choice.choose(logits, batch), expected)


def test_the_edges_of_the_limits(ops: Backend) -> None:
    """All tied, one kept, all but one kept, a mass of nothing, a mass of nearly all."""
    logits = torch.zeros(6, 70)
    logits[4] = torch.randn(70, generator=torch.Generator().manual_seed(1))
    logits[5] = logits[4]
    batch = SamplingBatch(
        torch.ones(6), torch.tensor([1, 69, 70, 5, 0, 0], dtype=torch.int32),
        torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.9999]), torch.zeros(6), torch.arange(6), torch.arange(6),
    )  # fmt: skip
    assert torch.equal(ops.sample(logits, batch), library_choice.choose(logits, batch))


def test_greedy_and_logsumexp(ops: Backend) -> None:
    logits = odd_logits(9, 9001)
    ids, logprobs = ops.sample_greedy(logits)
    assert torch.equal(ids, library_choice.best(logits))
    totals = ops.logsumexp(logits)
    torch.testing.assert_close(totals, library_choice.logsumexp(logits), rtol=3e-7, atol=2e-6)
    best = torch.nan_to_num(logits, nan=-math.inf, posinf=math.inf, neginf=-math.inf).gather(1, ids[:, None])[
        :, 0
    ]
    assert torch.equal(logprobs.nan_to_num(), (best - totals).nan_to_num())


@pytest.mark.parametrize(("vocabulary", "k"), [(300, 20), (5000, 3), (3, 10)])
def test_top_orders_by_value_then_id(ops: Backend, vocabulary: int, k: int) -> None:
    logits = odd_logits(8, max(vocabulary, 12))[:, :vocabulary].contiguous()
    values, ids = ops.topk(logits, k)
    wanted_values, wanted_ids = library_choice.top(logits, k)
    assert torch.equal(ids, wanted_ids) and torch.equal(values, wanted_values)


def test_the_noise_is_the_documented_function(ops: Backend) -> None:
    """With equal logits the choice is the largest noise, wherever in the vocabulary it is."""
    n, vocabulary = 12, 6000
    seeds = torch.randint(-(2**62), 2**62, (n,), generator=torch.Generator().manual_seed(8))
    off, ones = torch.zeros(n), torch.ones(n)
    batch = SamplingBatch(ones, off.int(), ones, off, seeds, torch.arange(n) * 100003)
    chosen = ops.sample(torch.zeros(n, vocabulary), batch).tolist()
    ids = np.arange(vocabulary)
    for i, token in enumerate(chosen):
        assert token == int(np.argmax(library_choice.noise(int(seeds[i]), i * 100003, ids)))
