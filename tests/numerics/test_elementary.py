"""Logarithm and exponential by IEEE operations: exact where they must be, close to the truth else. Rope tables:
as transformers computes them, and a shorter one is a prefix of a longer one, bit for bit."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from holdfast.numerics import elementary
from holdfast.numerics.backends.torch import sampling
from holdfast.numerics.elementary import cos_sin_fp32, exp_fp64, log_fp32, log_fp64, pow_fp32
from holdfast.numerics.rope import rope_tables
from holdfast.numerics.sampling import SamplingBatch


def _nearest(exact: Fraction) -> np.float32:
    """The number of fp32 nearest to a fraction, ties to the even one."""
    near = np.float32(float(exact))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(
        candidates, key=lambda one: (abs(Fraction(float(one)) - exact), int(np.array(one).view(np.int32)) & 1)
    )


def _exact(a: float, b: float, c: float) -> np.float32:
    return _nearest(Fraction(a) * Fraction(b) + Fraction(c))


def test_fma_rounds_once() -> None:
    generator = np.random.default_rng(1)
    a, b = (1 + generator.integers(0, 1 << 23, (2, 2000)) * 2.0**-23).astype(np.float32).astype(np.float64)
    c = (generator.integers(-(1 << 23), 1 << 23, 2000) * 2.0**-23).astype(np.float64)
    found = elementary._fma(a, b, c)
    assert found.tolist() == [float(_exact(*each)) for each in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("scale", "c"), [(2.0**-24, 1 + 2.0**-23), (-(2.0**-25), 1 - 2.0**-24), (2.0**-24, 1.0)]
)
def test_sum_in_the_middle_of_two_numbers_is_rounded_once(scale: float, c: float, sign: float) -> None:
    """The product is scale (1 - 2^-46). In fp64 the sum is the middle between two numbers of fp32,
    and a second rounding would not know the side it came from."""
    a, b, c = 1 + 2.0**-23, sign * scale * (1 - 2.0**-23), sign * c
    found = float(elementary._fma(np.array([a]), np.array([b]), np.array([c]))[0])
    assert found == _exact(a, b, c)
    if abs(c) != 1.0:
        assert found != np.float32(a * b + c)


def test_logarithms_and_exponential_are_accurate() -> None:
    generator = np.random.default_rng(2)
    x = generator.uniform(2.0**-33, 20.0, 20000).astype(np.float32)
    error = np.abs(log_fp32(x).astype(np.float64) - np.log(x.astype(np.float64)))
    assert (error <= 2.0 * np.spacing(np.maximum(np.abs(np.log(x)), np.float32(2.0**-3)))).all()
    y = -generator.exponential(30.0, 20000)
    assert np.abs(exp_fp64(y) / np.exp(y) - 1).max() < 2e-13
    assert exp_fp64(np.array([0.0, -701.0, -np.inf])).tolist() == [1.0, 0.0, 0.0]
    for value in (1.0, 1.5, 0.75, 2.0, 49152.0, 1e300, 3e-300, *generator.uniform(1, 1e6, 100)):
        assert log_fp64(value) == pytest.approx(np.log(value), rel=1e-15, abs=1e-16)


def test_sampling_uses_no_function_that_depends_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(3)) * 4
    batch = SamplingBatch(
        temperature=torch.full((3,), 0.8),
        top_k=torch.full((3,), 100, dtype=torch.int32),
        top_p=torch.full((3,), 0.9),
        min_p=torch.full((3,), 0.001),
        seeds=torch.arange(3),
        positions=torch.arange(3),
    )

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("depends on the CPU")

    for name in ("log", "log1p", "log2", "exp", "expm1", "exp2", "power", "sum", "mean", "dot"):
        monkeypatch.setattr(np, name, refuse)
    sampling.sample(logits, batch)
    sampling.logsumexp(logits)
    sampling.topk(logits, 5)


@pytest.mark.parametrize("largest", [1.0, 200.0, 2.0**17, 2.0**25])
def test_cosine_and_sine_are_correctly_rounded(largest: float) -> None:
    """Of 20,000 angles; a result this near the middle of two numbers of fp32 does not occur."""
    x = (np.random.default_rng(3).random(20_000) * 2 * largest - largest).astype(np.float32)
    cos, sin = cos_sin_fp32(x)
    assert np.array_equal(cos, np.cos(x.astype(np.float64)).astype(np.float32))
    assert np.array_equal(sin, np.sin(x.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("base", [1.5, 1e4, 5e5, 1e6, 1e15])
def test_power_is_correctly_rounded(base: float) -> None:
    exponents = np.arange(0, 256, 2, dtype=np.float32) / np.float32(256)
    expected = np.array([base ** float(one) for one in exponents]).astype(np.float32)
    assert np.array_equal(pow_fp32(base, exponents), expected)


def test_rope_tables_are_near_those_of_transformers() -> None:
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64))
    cos, sin = map(torch.from_numpy, rope_tables(inv_freq.numpy(), 1.5, 3000))
    angles = (inv_freq[:, None] @ torch.arange(3000, dtype=torch.float32)[None, :]).T
    both = torch.cat((angles, angles), dim=-1)
    for found, expected in ((cos, both.cos()), (sin, both.sin())):
        torch.testing.assert_close(found, (expected * 1.5)[:, :32], rtol=0, atol=3e-7)


def test_shorter_rope_table_is_a_prefix_of_a_longer_one() -> None:
    inv_freq = np.random.default_rng(0).random(20, np.float32)
    long = rope_tables(inv_freq, 1.0, 2500)
    for length in (1, 7, 1024, 1025):
        short = rope_tables(inv_freq, 1.0, length)
        assert all(np.array_equal(a, b[:length]) for a, b in zip(short, long, strict=True))
        assert short[0].shape == (length, 20)
