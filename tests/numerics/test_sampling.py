"""Sampling against the rule written plainly in fp64, with ties; and the Gumbel noise as a random
variable."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.core.step_plan import NO_TOKEN
from holdfast.numerics.backends.c.kernels import load_kernels
from holdfast.numerics.backends.torch.noise import noise
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import SamplingBatch


@pytest.fixture(
    params=[
        "c",
        "torch",
        *([pytest.param("triton", marks=pytest.mark.gpu)] if torch.cuda.is_available() else []),
    ]
)
def sampler(request: pytest.FixtureRequest, open_any: Callable[..., Backend]) -> Backend:
    """The interpreter would take minutes here; `test_triton_sampling.py` is for it."""
    return open_any(request.param, torch.float32)


def batch_of(
    n: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 7
) -> SamplingBatch:
    return SamplingBatch(
        torch.full((n,), temperature),
        torch.full((n,), top_k, dtype=torch.int32),
        torch.full((n,), top_p),
        torch.full((n,), min_p),
        torch.arange(n) * 1000003 + seed,
        torch.arange(n) * 3,
    )


def kept_by_rule(z: np.ndarray, top_k: int, top_p: float, min_p: float) -> list[int]:
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if top_k:
        order = order[:top_k]
    p = np.exp(z[order].astype(np.float64) - z.max())
    if top_p < 1:
        count = int(np.searchsorted(np.cumsum(p), np.float64(np.float32(top_p)) * p.sum())) + 1
        order, p = order[:count], p[:count]
    return sorted(i for i, weight in zip(order, p, strict=True) if weight >= np.float32(min_p))


def sample_by_rule(logits: Tensor, batch: SamplingBatch) -> list[int]:
    token_ids = []
    for i, row in enumerate(logits.numpy()):
        z = (row / batch.temperature[i].numpy()).astype(np.float32)
        kept = kept_by_rule(z, int(batch.top_k[i]), float(batch.top_p[i]), float(batch.min_p[i]))
        ids = np.array([k for k in kept if z[k] > -np.inf])
        noisy = z[ids] + noise(int(batch.seeds[i]), int(batch.positions[i]), ids)
        token_ids.append(int(ids[np.argmax(noisy)]))
    return token_ids


@pytest.mark.parametrize("top_k", [0, 1, 5, 40])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_sample_follows_the_rule(
    sampler: Backend, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = torch.randn(12, 501, generator=torch.Generator().manual_seed(2)) * 2
    logits[3] = torch.round(logits[3])  # many ties
    logits[4, ::2] = -math.inf
    logits[5, :] = 1.25
    batch = batch_of(12, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert sampler.sample(logits, batch).tolist() == sample_by_rule(logits, batch)


def test_greedy_takes_the_lowest_id_of_equals(sampler: Backend) -> None:
    logits = torch.zeros(5, 77)
    logits[1, 40], logits[1, 60] = 3.0, 3.0
    logits[2] = -math.inf
    logits[2, 9] = -5.0
    logits[3, 70], logits[3, 2] = math.inf, math.nan
    logits[4] = -math.inf
    assert sampler.sample(logits, batch_of(5, temperature=0.0)).tolist() == [0, 40, 9, 70, NO_TOKEN]
    assert sampler.sample_greedy(logits)[0].tolist() == [0, 40, 9, 70, NO_TOKEN]


def test_nan_and_infinity_never_crash(sampler: Backend) -> None:
    logits = torch.full((4, 33), math.nan)
    logits[1, 5] = 1.0
    logits[2] = 0.0
    logits[2, 7] = math.inf
    logits[3] = -math.inf
    for settings in (
        {},
        {"top_k": 3, "top_p": 0.5, "min_p": 0.1},
        {"temperature": 0.0},
        {"temperature": 1e-30},
    ):
        token_ids = sampler.sample(logits, batch_of(4, **settings)).tolist()
        assert token_ids == [NO_TOKEN, 5, 7, NO_TOKEN]


@pytest.mark.parametrize("min_p", [1.5, math.nan, math.inf])
@pytest.mark.parametrize("limits", [{}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.5}], ids=str)
def test_min_p_that_keeps_no_token_gives_no_token(
    sampler: Backend, min_p: float, limits: dict[str, float]
) -> None:
    """No request has such a setting. A row that has one must not harm the others."""
    logits = torch.randn(3, 501, generator=torch.Generator().manual_seed(2))
    batch = batch_of(3, **limits)  # type: ignore[arg-type]
    expected = sampler.sample(logits, batch).tolist()
    batch.min_p[1] = min_p
    assert sampler.sample(logits, batch).tolist() == [expected[0], NO_TOKEN, expected[2]]


def test_row_does_not_depend_on_the_batch(sampler: Backend) -> None:
    logits = torch.randn(9, 4099, generator=torch.Generator().manual_seed(3))
    batch = batch_of(9, top_p=0.8)
    whole = sampler.sample(logits, batch)
    lse = sampler.logsumexp(logits)
    for i in range(9):
        one = SamplingBatch(
            *(getattr(batch, name)[i : i + 1].clone() for name in SamplingBatch.__dataclass_fields__)
        )
        assert sampler.sample(logits[i : i + 1], one)[0] == whole[i]
        assert sampler.logsumexp(logits[i : i + 1])[0] == lse[i]


def test_sample_greedy_is_temperature_0_and_its_logprob(sampler: Backend) -> None:
    logits = torch.round(torch.randn(7, 4099, generator=torch.Generator().manual_seed(6)) * 4)
    ids, logprobs = sampler.sample_greedy(logits)
    assert torch.equal(ids, sampler.sample(logits, batch_of(7, temperature=0.0)))
    assert torch.equal(logprobs, logits.gather(1, ids[:, None])[:, 0] - sampler.logsumexp(logits))


def test_logsumexp(sampler: Backend) -> None:
    logits = torch.randn(6, 49152, generator=torch.Generator().manual_seed(4)) * 5
    logits[1, ::3] = -math.inf
    logits[2] += 1000
    torch.testing.assert_close(
        sampler.logsumexp(logits), logits.double().logsumexp(-1).float(), rtol=3e-7, atol=2e-6
    )
    assert sampler.logsumexp(torch.full((1, 5), -math.inf))[0] == -math.inf


@pytest.mark.parametrize("k", [1, 5, 20, 64])
def test_topk_orders_by_value_then_id(sampler: Backend, k: int) -> None:
    logits = torch.round(torch.randn(7, 300, generator=torch.Generator().manual_seed(5)) * 4)
    logits[2] = 0.0
    logits[3, :290] = -math.inf
    values, ids = sampler.topk(logits, k)
    for row, row_values, row_ids in zip(logits.tolist(), values.tolist(), ids.tolist(), strict=True):
        order = sorted(range(300), key=lambda i: (-row[i], i))[:k]
        assert row_ids == order
        assert row_values == [row[i] for i in order]


def test_topk_of_a_small_vocabulary(sampler: Backend) -> None:
    values, ids = sampler.topk(torch.tensor([[1.0, 3.0, 2.0]]), 10)
    assert ids.tolist() == [[1, 2, 0]]
    assert values.tolist() == [[3.0, 2.0, 1.0]]


def test_kernel_noise_is_the_documented_function() -> None:
    out = torch.empty(5000)
    for seed, position in ((0, 0), (-1, 17), (2**62, 3), (5, 10**6)):
        load_kernels().run.noise(out.data_ptr(), seed, position, 5000)
        same_bits = out.numpy().view(np.int32) == noise(seed, position, np.arange(5000)).view(np.int32)
        assert same_bits.all()


def test_noise_is_gumbel_and_independent() -> None:
    """Mean, variance and uniformity over ids, positions and seeds, and no correlation between
    neighbours."""
    ids = np.arange(20000)
    draws = {
        "ids": noise(11, 5, ids),
        "positions": np.array([noise(11, p, ids[3:4])[0] for p in range(2000)]),
        "seeds": np.array([noise(s, 5, ids[3:4])[0] for s in range(2000)]),
    }
    for name, sample in draws.items():
        n = len(sample)
        assert abs(sample.mean() - 0.57722) < 5 * math.sqrt(1.645 / n), name
        assert abs(sample.var() - 1.64493) < 0.12, name
        uniform = np.exp(-np.exp(-sample.astype(np.float64)))
        counts, _ = np.histogram(uniform, bins=50, range=(0, 1))
        chi_square = ((counts - n / 50) ** 2 / (n / 50)).sum()
        assert chi_square < 49 + 5 * math.sqrt(98), name
        assert abs(np.corrcoef(uniform[1:], uniform[:-1])[0, 1]) < 5 / math.sqrt(n), name
    assert abs(np.corrcoef(noise(1, 5, ids), noise(1, 6, ids))[0, 1]) < 0.04
    assert abs(np.corrcoef(noise(1, 5, ids), noise(2, 5, ids))[0, 1]) < 0.04


def test_sampled_frequencies_follow_the_softmax(sampler: Backend) -> None:
    n = 2000
    row = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, -math.inf, 1.5])
    token_ids = sampler.sample(row.repeat(n, 1), batch_of(n, temperature=0.7))
    expected = torch.softmax(row.double() / 0.7, -1) * n
    counts = torch.bincount(token_ids, minlength=7).double()
    assert counts[5] == 0
    live = expected > 0
    assert ((counts - expected)[live] ** 2 / expected[live]).sum() < 5 + 5 * math.sqrt(10)
