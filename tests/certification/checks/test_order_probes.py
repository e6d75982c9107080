"""Probes that show the order of summation: what they are made of, and that nothing overflows."""

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.certification.certificate import run_check
from holdfast.certification.checks import order_probes
from holdfast.certification.checks.order_probes import NUM_GEMM_PROBES, GemmProbes, attention_inputs
from holdfast.certification.checks.probes import mixed_batches, plant, run_full
from holdfast.numerics.backends.torch.noise import noise
from support.arrays import as_tensor

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HALF = NUM_GEMM_PROBES // 2


def inputs_of(name: str, *arguments: object) -> Tensor:
    """Return the inputs that a function of `order_probes` makes, as a tensor."""
    found: Tensor = as_tensor(getattr(order_probes, name)(*arguments))
    return found


def products(width: int, columns: int, dtype: torch.dtype) -> Tensor:
    """The exact products [probes, columns, width], in fp64: inputs times weights."""
    probes = GemmProbes(width, dtype, CPU)
    weights = probes.weights(columns)
    assert weights.dtype is probes.inputs.dtype is dtype
    return probes.inputs.double()[:, None, :] * weights.double()[None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [32, 33, 576])
def test_even_columns_cancel_exactly(width: int, dtype: torch.dtype) -> None:
    found = products(width, 8, dtype)[:HALF, ::2].sort(-1).values
    assert torch.equal(found, -found.flip(-1)), "every product has its negative"
    assert found.abs().amax() > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [32, 33, 576])
def test_odd_columns_have_spikes_that_cancel_and_dust(width: int, dtype: torch.dtype) -> None:
    found = products(width, 8, dtype)[HALF:, 1::2]
    largest = found.abs().amax(-1, keepdim=True)
    spikes = found.where(found.abs() > largest / 4, 0).sort(-1).values
    assert torch.equal(spikes, -spikes.flip(-1)) and (spikes != 0).sum(-1).amax() <= width // 2
    dust = found.where(found.abs() < largest / 4, 0) / largest
    assert 2**-27 < dust.abs().mean() < 2**-21 and dust.abs().max() < 2**-19


def test_spikes_are_at_many_distances() -> None:
    weights = GemmProbes(256, torch.float32, CPU).weights(512)[1::2]
    distance = (weights.argmax(1) - weights.argmin(1)).abs()
    assert len(distance.unique()) > 100 and distance.min() > 0


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_tiny_shapes_have_probes(width: int, columns: int) -> None:
    found = products(width, columns, torch.bfloat16)
    assert found.shape == (NUM_GEMM_PROBES, columns, width) and found.isfinite().all()


def test_probes_depend_on_the_shape_alone() -> None:
    first, second = (GemmProbes(48, torch.bfloat16, CPU) for _ in range(2))
    assert torch.equal(first.inputs, second.inputs) and torch.equal(first.weights(9), second.weights(9))
    assert not torch.equal(first.weights(9), second.weights(8)[:9, :].repeat(2, 1)[:9]), (
        "a new draw each time"
    )


@pytest.mark.parametrize("width", [64, 576])
def test_products_of_fp16_probes_stay_finite(width: int) -> None:
    sums = products(width, 64, torch.float16).sum(-1)
    assert sums.to(torch.float16).isfinite().all()


def test_squares_are_lost_one_by_one_and_not_together() -> None:
    rows = inputs_of("norm_inputs", 576, 32, torch.bfloat16)[-8:-4].float()
    squares = rows.square()
    spike, dust = (
        squares.max(1, keepdim=True).values,
        squares.masked_fill(squares == squares.amax(1, True), 0),
    )
    assert torch.equal((spike + dust), spike.expand_as(dust)), "each is below half an ulp"
    assert (spike[:, 0] + dust.sum(1) > spike[:, 0]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_means_of_squares_are_halfway_between_two_numbers(dtype: torch.dtype) -> None:
    rows = inputs_of("norm_inputs", 93, 64, dtype)[-8:].float()
    mean = rows.square().sum(1).double() / 93
    in_ulps = torch.frexp(mean).mantissa * 2**24
    assert ((in_ulps % 1 - 0.5).abs() < 0.01).all() and len(mean.unique()) == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_factor_of_a_norm_is_at_an_edge_of_rounding(dtype: torch.dtype) -> None:
    rows = inputs_of("edge_inputs", 576, 1e-5, dtype, 8192)
    assert rows.dtype is dtype and len(rows) > 60
    factor = (rows.double().square().mean(1) + 1e-5).rsqrt().float()
    nearby = (factor.view(torch.int32)[:, None] + torch.arange(-3, 5, dtype=torch.int32)).view(torch.float32)
    normed = (rows.float()[:, None] * nearby[..., None]).to(dtype)
    assert (normed[:, 1:] != normed[:, :-1]).any(-1).any(-1).all()


def test_rope_products_nearly_cancel_in_both_halves() -> None:
    angles = torch.rand(16, generator=torch.Generator().manual_seed(0)) * 6
    cos, sin = angles.cos(), angles.sin()
    x = inputs_of("rope_inputs", 8, cos.numpy(), sin.numpy(), 4, torch.float32).view(4, 8, 2, 16)
    first, second = x[:, :, 0], x[:, :, 1]
    rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), 2).abs()
    assert (rotated[:, 1::4, 0] < 1e-5).all() and (rotated[:, 3::4, 1] < 1e-5).all()
    assert rotated[:, ::2].mean() > 0.1


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 17 * 128 * 2), (torch.float16, 17 * 1024 * 2)])
def test_silu_gates_are_all_numbers_of_16_bits_in_their_range(dtype: torch.dtype, count: int) -> None:
    width = 1024
    gates = inputs_of("silu_inputs", width, 64, dtype)[:, :width]
    assert len(gates.flatten().unique()) == count
    assert gates.abs().min() == 2**-10 and gates.abs().max() < 2**7


def test_logits_are_normal_or_equal_or_have_one_large_exponential() -> None:
    rows = inputs_of("logits_inputs", 1000)
    assert rows[::4].std() > 3 and rows[1::4].std() < 0.02
    for first, half_ulp in ((2, 2**-24), (3, 2**-53)):
        probabilities = rows[first::4].double().exp().sort(1).values
        assert (probabilities[:, -1] == 1).all() and (probabilities[:, -2] < half_ulp).all()


def test_noise_makes_its_logits_equal() -> None:
    rows = inputs_of("noise_inputs", 200, [3, 4], 11, [0.7, 1.3])
    noises = torch.from_numpy(np.stack([noise(seed, 11, np.arange(200)) for seed in (3, 4)]))
    assert ((rows / torch.tensor([[0.7], [1.3]]) + noises).abs() < 1e-5).all() and rows.std() > 0.5


def test_spikes_cover_all_places_of_a_wide_weight() -> None:
    probes = GemmProbes(96, torch.bfloat16, CPU)
    weights = torch.cat([probes.weights(256) for _ in range(2)]).float()
    assert ((weights.abs() == 2**15).sum(0) > 0).all()


def test_kinds_of_columns_change_places_in_the_next_weight() -> None:
    probes = GemmProbes(96, torch.bfloat16, CPU)
    kinds = [(probes.weights(5).abs() == 2**15).any(1).tolist() for _ in range(2)]
    assert kinds == [[False, True] * 2 + [False], [True, False] * 2 + [True]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_inputs_have_spikes_in_keys_and_values(dtype: torch.dtype) -> None:
    q, k, v = attention_inputs(100, 10, 4, 2, 16, dtype, CPU)
    assert (q.shape, k.shape, v.shape) == ((10, 4, 16), (100, 2, 16), (100, 2, 16))
    assert (q[:, ::2] == 0).all() and (q[:, 1::2] == q[:, 1::2, :1]).all() and (q[:, 1::2] != 0).all()
    for largest, smallest, spikes in ((k.amax(2), k.amin(2), k), (v.amax(0), v.amin(0), v)):
        assert torch.equal(largest, -smallest) and (largest == spikes.max()).all()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 64, 65, 300])
def test_every_probe_occurs_at_every_size(size: int) -> None:
    probes = torch.arange(float(NUM_GEMM_PROBES))[:, None]
    seen: list[int] = []

    def operation(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x * 2

    found, order = run_check(run_full(operation, probes, size))
    assert set(order.tolist()) == set(range(NUM_GEMM_PROBES)) and set(seen) == {size}
    assert torch.equal(found, probes[order] * 2)
    for batch in mixed_batches(size, NUM_GEMM_PROBES):
        assert len(batch.seats) == len(batch.probes) == len(set(batch.seats)) and max(batch.seats) < size


def test_neighbours_are_around_the_probes() -> None:
    probes = torch.ones(NUM_GEMM_PROBES, 16)
    for batch in mixed_batches(20, NUM_GEMM_PROBES):
        planted = plant(probes, batch)
        assert (planted[list(batch.seats)] == 1).all()
        others = planted[[row for row in range(20) if row not in batch.seats]]
        sizes = others.abs().mean(1)
        assert (sizes > 100).any() or (sizes < 0.01).all()
