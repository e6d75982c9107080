"""Scores and references of a softmax whose bits do not depend on what is subtracted from the scores.

In 16-bit dtypes, scores (in powers of two) are rounded to multiples of 2^-14, and what is subtracted from those of
a row, its reference, is an integer:

    weight = bf16(2^(score - reference))

In bfloat16, another reference changes every weight by the same power of two. The difference is exact, `ex2.approx` gives the
same mantissa for every whole number below 0 that is added to its operand, and products, sums and their rounding
scale with it. So one kernel may take the maximum so far, and another one a reference that never changes
(`hopper.py`). What is lost at the ends of the range of exponents is below TINY_RESULT, and such results are 0.

A GRID of 0 stands for float32, soft caps and sinks, which only `paged.py` computes: nothing is rounded.
"""

import triton
import triton.language as tl

from holdfast.numerics.backends.triton.elementwise import tanh

SCORE_GRID = tl.constexpr(768.0)  # 1.5 * 2^9: sums with it, from 512 to 1024, are multiples of 2^-14
TINY_RESULT = tl.constexpr(2.0**-60)


@triton.jit
def scale_scores(dots, scale, cap, CAPPED: tl.constexpr, GRID: tl.constexpr):
    if GRID != 0:
        return tl.fma(dots, scale, GRID) - GRID
    scores = dots * scale
    if CAPPED:
        scores = tanh(scores) * cap
    return scores


@triton.jit
def as_reference(highest, GRID: tl.constexpr):
    """Return the reference of rows with these maxima."""
    if GRID != 0:
        highest = tl.ceil(highest)
    return highest


@triton.jit
def divide(acc, row_sum, GRID: tl.constexpr):
    result = acc / row_sum + 0.0  # -0 becomes 0
    if GRID != 0:
        result = tl.where(tl.abs(result) < TINY_RESULT, 0.0, result)
    return result
