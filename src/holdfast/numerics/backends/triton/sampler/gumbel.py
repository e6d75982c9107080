"""Gumbel noise on the device: the function of (seed, position, token id) that
`backends/c/sampling.c` defines.

The logarithm is our own, because the device's fast one is inaccurate near 1, where the large noise
values come from.
"""

import triton
import triton.language as tl

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_STREAM = tl.constexpr(0xD1B54A32D192ED03)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_MAX_UNIFORM = tl.constexpr(1.0 - 2.0**-24)
_BOUND_MARGIN = tl.constexpr(1e-3)
_SQRT_HALF = tl.constexpr(0x3F3504F3)  # bits of sqrt(1/2): mantissas are reduced to [sqrt(1/2), sqrt(2))


@triton.jit
def _mix(z):
    """The finaliser of splitmix64."""
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)


@triton.jit
def noise_key(seed, position):
    return _mix(_mix(seed.to(tl.uint64) + _GOLDEN) ^ _mix(position.to(tl.uint64) * _GOLDEN + _STREAM))


@triton.jit
def _log(x):
    """Natural logarithm of a positive normal number, to about the last bit."""
    bits = x.to(tl.int32, bitcast=True) - _SQRT_HALF
    exponent = (bits >> 23).to(tl.float32)
    m = ((bits & 0x007FFFFF) + _SQRT_HALF).to(tl.float32, bitcast=True) - 1.0
    p = tl.fma(m, 7.0376836292e-2, -1.1514610310e-1)
    p = tl.fma(p, m, 1.1676998740e-1)
    p = tl.fma(p, m, -1.2420140846e-1)
    p = tl.fma(p, m, 1.4249322787e-1)
    p = tl.fma(p, m, -1.6668057665e-1)
    p = tl.fma(p, m, 2.0000714765e-1)
    p = tl.fma(p, m, -2.4999993993e-1)
    p = tl.fma(p, m, 3.3333331174e-1)
    square = m * m
    y = tl.fma(exponent, -2.12194440e-4, p * m * square)
    y = tl.fma(square, -0.5, y)
    return tl.fma(exponent, 0.693359375, m + y)


@triton.jit
def _uniform(key, ids):
    """w in (0, 1), with a fine resolution near 0."""
    h = _mix(key + (ids.to(tl.uint64) + 1) * _GOLDEN)
    return tl.minimum(((h >> 32).to(tl.float32) + 0.5) * 2.3283064365386963e-10, _MAX_UNIFORM)


@triton.jit
def gumbel_bound(key, ids):
    """An upper bound of the noise, quickly: -log(1 - w) is larger than w.

    The margin covers the errors of both logarithms.
    """
    return _BOUND_MARGIN - tl.log(_uniform(key, ids))


@triton.jit
def gumbel(key, ids):
    """-log(-log(1 - w))."""
    w = _uniform(key, ids)
    y = 1.0 - w
    # w / (1 - y) corrects the rounding error of y = 1 - w
    e = tl.where(y == 1.0, w, -_log(y) * tl.math.div_rn(w, tl.where(y == 1.0, 1.0, 1.0 - y)))
    return -_log(e)
