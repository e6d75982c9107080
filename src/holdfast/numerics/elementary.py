"""Logarithm, exponential, power, sine and cosine by additions, multiplications and operations on bits.

numpy, torch and libm have several implementations of these functions and choose one by the CPU, so their
last bit depends on the machine. IEEE 754 defines every result of +, -, *, / and of a conversion, and
numpy rounds each operation separately. So these functions give the same bits everywhere.

`log_fp32` follows `log_v` of `backends/c/simd.h` operation by operation and has its bits, and so does
`log_fp64` (a series, relative error 1e-15). `exp_fp64` (a table and a polynomial, 1e-13), `pow_fp32` and
`cos_sin_fp32` are our own.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_SQRT_HALF_BITS = 0x3F3504F3
_LOG_FP32 = tuple(
    float(np.float32(coefficient))
    for coefficient in (
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
)
_LN2_TAIL = float(np.float32(-2.12194440e-4))  # log(2) is 0.693359375 and this
# ln 2 as a sum. The upper part has 21 zero bits, so its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_ATANH = tuple(1.0 / (2 * k + 1) for k in range(12))  # atanh(s) / s in s^2, for |s| <= 0.172
_STEPS = 64  # e^x = 2^(n / _STEPS) e^r
_ROOT_BITS = 192  # after the point, far more than fp64 has


def _roots_of_two() -> list[int]:
    """Return 2^(k / _STEPS) for each k, times 2^_ROOT_BITS."""
    root = 2 << _ROOT_BITS
    for _ in range(_STEPS.bit_length() - 1):
        root = math.isqrt(root << _ROOT_BITS)
    powers = [1 << _ROOT_BITS]
    while len(powers) < _STEPS:
        powers.append(powers[-1] * root >> _ROOT_BITS)
    return powers


_STEP = float.fromhex("0x1.62e42fefa39efp-7")  # ln(2) / 64
_EXP = tuple(1.0 / math.factorial(k) for k in range(5))  # e^r for |r| <= _STEP / 2
_POWERS = np.array([root / 2**_ROOT_BITS for root in _roots_of_two()])
_SMALLEST_EXPONENT = -700.0  # e^x below is 0, above it is a normal number
# pi / 2 as a sum of 27, 27 and 53 bits: a product of one of the first two and an integer below 2^26 is exact.
_HALF_PI = tuple(map(float.fromhex, ("0x1.921fb54p+0", "0x1.10b4610p-30", "0x1.a62633145c06ep-58")))
_SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(7))  # sin(r) / r in r^2, for |r| <= pi / 4
_COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(8))
_SIGNS = np.array([1.0, 1.0, -1.0, -1.0])  # of the sine, by quarter
_HALFWAY = 0x10000000  # the bits of fp64 that fp32 lacks, between two numbers of fp32


def _fma(a: Doubles, b: Doubles, c: Doubles | float) -> Doubles:
    """a * b + c of numbers of fp32, rounded once to fp32.

    The product is exact in fp64. The sum is rounded to fp64 and then to fp32. The second rounding
    is wrong only if the first one has hit the middle between two numbers of fp32.
    """
    total = a * b + c
    halfway = total.view(np.int64) & 0x1FFFFFFF == _HALFWAY
    if halfway.any():
        total = np.where(halfway, _round_to_odd(a * b, c), total)
    return total.astype(np.float32).astype(np.float64)


def _round_to_odd(a: Doubles, b: Doubles | float) -> Doubles:
    """a + b in fp64: of the two neighbours of an inexact sum, the one with an odd last bit. It is
    on the same side of every number of fp32 as the sum."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)  # exact: Knuth's two-sum
    bits = total.view(np.int64)
    away = np.where((error > 0.0) == (total > 0.0), np.int64(1), np.int64(-1))  # from zero or to it
    return np.where((error != 0.0) & (bits & 1 == 0), bits + away, bits).view(np.float64)


def log_fp32(x: Floats) -> Floats:
    """log(x) of positive normal numbers, about 1 ulp; the bits of `log_v` in the C kernels."""
    bits = x.view(np.int32) - np.int32(_SQRT_HALF_BITS)
    exponent = (bits >> 23).astype(np.float64)
    mantissa = ((bits & np.int32(0x007FFFFF)) + np.int32(_SQRT_HALF_BITS)).view(np.float32)
    m32 = mantissa - np.float32(1.0)  # in [sqrt(1/2) - 1, sqrt(2) - 1)
    m2 = m32 * m32
    m = m32.astype(np.float64)
    p = np.full_like(m, _LOG_FP32[0])
    for coefficient in _LOG_FP32[1:]:
        p = _fma(p, m, coefficient)
    y = (p.astype(np.float32) * m32 * m2).astype(np.float64)
    y = _fma(exponent, np.full_like(m, _LN2_TAIL), y)
    y = _fma(m2.astype(np.float64), np.full_like(m, -0.5), y)
    high = (m32 + y.astype(np.float32)).astype(np.float64)
    return _fma(exponent, np.full_like(m, 0.693359375), high).astype(np.float32)


def exp_fp64(x: Doubles) -> Doubles:
    """e^x for x <= 0; 0 below -700."""
    limited = np.maximum(x, _SMALLEST_EXPONENT)
    n = np.rint(limited * (1.0 / _STEP))
    r = np.subtract(limited, n * _STEP, out=limited)
    index = n.astype(np.int64)
    p: Doubles = r * _EXP[-1]
    for coefficient in _EXP[-2:0:-1]:
        np.add(p, coefficient, out=p)
        np.multiply(p, r, out=p)
    np.add(p, _EXP[0], out=p)
    power = _POWERS.view(np.int64).take(index & (_STEPS - 1))
    index >>= 6
    index <<= 52
    np.add(power, index, out=power)  # 2^(n / _STEPS)
    np.multiply(p, power.view(np.float64), out=p)
    if limited.size and x.min() < _SMALLEST_EXPONENT:
        p[x < _SMALLEST_EXPONENT] = 0.0
    return p


def log_fp64(x: float) -> float:
    """log(x) of a positive normal number: 2 atanh((m - 1) / (m + 1)) + e ln 2, with x = m 2^e."""
    mantissa, exponent = math.frexp(x)  # in [1/2, 1)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    s2, p = s * s, _ATANH[-1]
    for coefficient in _ATANH[-2::-1]:
        p = p * s2 + coefficient
    return exponent * _LN2_HIGH + (2.0 * s * p + exponent * _LN2_LOW)


def pow_fp32(base: float, exponents: Floats) -> Floats:
    """base ** exponent for base >= 1 and exponents from 0 to 1, relative error 2^-24."""
    return (1.0 / exp_fp64(exponents.astype(np.float64) * -log_fp64(base))).astype(np.float32)


def cos_sin_fp32(x: Floats) -> tuple[Floats, Floats]:
    """cos(x), sin(x), to half an ulp and 1e-12, for |x| < 2^26."""
    wide = x.astype(np.float64)
    turns = np.rint(wide * (2.0 / math.pi))
    r = wide
    for part in _HALF_PI:
        r = r - turns * part
    r2 = r * r
    sine, cosine = r * _series(_SIN, r2), _series(_COS, r2)
    quarter = turns.astype(np.int64) & 3
    is_odd = (quarter & 1).astype(bool)
    cos = np.where(is_odd, sine, cosine) * _SIGNS[quarter + 1 & 3]
    sin = np.where(is_odd, cosine, sine) * _SIGNS[quarter]
    return cos.astype(np.float32), sin.astype(np.float32)


def _series(coefficients: tuple[float, ...], x: Doubles) -> Doubles:
    p = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        np.multiply(p, x, out=p)
        np.add(p, coefficient, out=p)
    return p
