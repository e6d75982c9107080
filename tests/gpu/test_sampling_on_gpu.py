"""Sampling on a GPU: the tokens of the CPU with every setting, whatever the neighbours."""

import math

import pytest
import torch
from gpu_numbers import HAS_GPU, assert_batch_invariant, assert_near, same_bits
from torch import Tensor

from holdfast.core.step_plan import NO_TOKEN
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.backends.torch.backend import TorchBackend
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import SamplingBatch
from holdfast.worker.logits import chosen_logprobs

VOCABS = [49152, 128256, 151936] if HAS_GPU else [613]
NUM_ROWS = 24 if HAS_GPU else 6
SETTINGS = [
    {},
    {"top_k": 1},
    {"top_k": 50},
    {"top_p": 0.9},
    {"top_p": 0.001},
    {"min_p": 0.1},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.02, "temperature": 0.7},
    {"temperature": 0.0},
]


@pytest.fixture
def dtype() -> torch.dtype:
    return torch.float32


@pytest.fixture(params=VOCABS)
def logits(request: pytest.FixtureRequest, device: torch.device) -> Tensor:
    """Random logits; row 1 has ties, row 2 half of its tokens masked, row 3 is constant, row 4 has one token left."""
    found = torch.randn(NUM_ROWS, request.param, generator=torch.Generator().manual_seed(2)) * 3
    found[1] = torch.round(found[1])
    found[2, ::2] = -math.inf
    found[3] = 1.25
    found[4] = -math.inf
    found[4, 17] = -3.0
    return found.to(device)


def sampling_batch(
    num_tokens: int,
    device: torch.device,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> SamplingBatch:
    return SamplingBatch(
        torch.full((num_tokens,), temperature, device=device),
        torch.full((num_tokens,), top_k, dtype=torch.int32, device=device),
        torch.full((num_tokens,), top_p, device=device),
        torch.full((num_tokens,), min_p, device=device),
        (torch.arange(num_tokens, device=device) * 1000003 + 7),
        (torch.arange(num_tokens, device=device) * 3),
    )


def select(batch: SamplingBatch, rows: list[int]) -> SamplingBatch:
    return SamplingBatch(
        *(
            getattr(batch, name)[rows].contiguous()
            for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
        )
    )


def on_cpu(batch: SamplingBatch) -> SamplingBatch:
    return SamplingBatch(
        *(
            getattr(batch, name).cpu()
            for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
        )
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_sampled_tokens_equal_the_cpus(
    backend: Backend, device: torch.device, logits: Tensor, settings: dict[str, float]
) -> None:
    batch = sampling_batch(len(logits), device, **settings)  # type: ignore[arg-type]
    expected = TorchBackend(torch.float32).sample(logits.cpu(), on_cpu(batch))
    assert backend.sample(logits.clone(), batch).tolist() == expected.tolist()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rows_without_a_token_give_no_token_and_a_harmless_logprob(
    backend: Backend, device: torch.device, logits: Tensor, settings: dict[str, float]
) -> None:
    """No logit is a number, or min-p keeps none. The other rows are not affected."""
    batch = sampling_batch(len(logits), device, **settings)  # type: ignore[arg-type]
    expected = backend.sample(logits.clone(), batch)
    broken = logits.clone()
    broken[0], broken[3] = math.nan, -math.inf
    batch.min_p[2] = 1.5
    rows = [0, 3] if settings.get("temperature") == 0.0 else [0, 2, 3]
    expected[rows] = NO_TOKEN
    found = backend.sample(broken.clone(), batch)
    assert found.tolist() == expected.tolist()
    assert backend.sample_greedy(broken.clone())[0][[0, 3]].tolist() == [NO_TOKEN] * 2
    logprobs = torch.empty(len(logits), device=device)
    chosen_logprobs(backend, broken, found, out=logprobs)
    asked = expected != NO_TOKEN
    best = broken[asked].gather(1, found[asked][:, None])[:, 0]
    assert same_bits(logprobs[asked], best - backend.logsumexp(broken.clone())[asked])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_sampled_tokens_do_not_depend_on_neighbours(
    backend: Backend, device: torch.device, logits: Tensor, settings: dict[str, float]
) -> None:
    batch = sampling_batch(len(logits), device, **settings)  # type: ignore[arg-type]
    assert_batch_invariant(
        lambda rows: [backend.sample(logits[rows].contiguous(), select(batch, rows))], len(logits)
    )


def test_greedy_equals_sampling_at_temperature_0_with_logprob(
    backend: Backend, device: torch.device, logits: Tensor
) -> None:
    ids, logprobs = backend.sample_greedy(logits.clone())
    assert (
        ids.tolist()
        == backend.sample(logits.clone(), sampling_batch(len(logits), device, temperature=0.0)).tolist()
    )
    best = logits.gather(1, ids[:, None])[:, 0]
    assert same_bits(logprobs, best - backend.logsumexp(logits.clone()))
    assert_batch_invariant(lambda rows: list(backend.sample_greedy(logits[rows].contiguous())), len(logits))


def test_logsumexp_is_near_fp64_and_batch_invariant(backend: Backend, logits: Tensor) -> None:
    exact = torch.logsumexp(logits.double(), 1)
    assert_near(backend.logsumexp(logits.clone()), exact, torch.float32)
    assert_batch_invariant(lambda rows: [backend.logsumexp(logits[rows].contiguous())], len(logits))


@pytest.mark.parametrize("k", [1, 2, 20])
def test_topk_is_ordered_with_ties_to_the_lowest_id(backend: Backend, logits: Tensor, k: int) -> None:
    values, ids = backend.topk(logits.clone(), k)
    expected_values, expected_ids = TorchBackend(torch.float32).topk(logits.cpu(), k)
    assert same_bits(values.cpu(), expected_values)
    finite = torch.isfinite(expected_values)
    assert torch.equal(ids.cpu()[finite], expected_ids[finite])
    assert_batch_invariant(lambda rows: list(backend.topk(logits[rows].contiguous(), k)), len(logits))


def test_sampling_does_not_depend_on_the_activation_dtype(
    device: torch.device, backend: Backend, logits: Tensor
) -> None:
    other = open_backend(torch.float16, kernels="triton", num_threads=1, device=device)
    batch = sampling_batch(len(logits), device, top_p=0.9)
    assert torch.equal(backend.sample(logits.clone(), batch), other.sample(logits.clone(), batch))
