"""What the kernels that choose tokens have in common: clean logits, heat, ranks, and the best of a row.

Everything here is a comparison or the formula of one element, so no order of operations can be felt.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))
NO_ID = tl.constexpr(0x7FFFFFFF)
CHUNK = 4096  # of the vocabulary, what one program takes


@triton.jit
def clean(x):
    """NaN counts as -inf, -0 as 0."""
    return tl.where(x == x, tl.where(x == 0.0, 0.0, x), -INFINITY)


@triton.jit
def load_clean(logits, row, column, V: tl.constexpr):
    return clean(tl.load(logits + row.to(tl.int64) * V + column, mask=column < V, other=-INFINITY))


@triton.jit
def is_finite(x):
    return tl.abs(x) < INFINITY


@triton.jit
def best_of(values, ids):
    """The best value and its id, ties to the lowest; both orders of nothing but comparisons."""
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, ids, NO_ID), 0)


@triton.jit
def load_best(best, best_ids, row, CHUNKS: tl.constexpr, SLOTS: tl.constexpr):
    """The best of a row, from what its chunks found."""
    slot = tl.arange(0, SLOTS)
    values = tl.load(best + row * CHUNKS + slot, mask=slot < CHUNKS, other=-INFINITY)
    return best_of(values, tl.load(best_ids + row * CHUNKS + slot, mask=slot < CHUNKS, other=NO_ID))


@triton.jit
def heat(x, temperature):
    """z = logit / temperature."""
    return clean(tl.math.div_rn(x, temperature + tl.zeros_like(x)))


@triton.jit
def rank_of(z):
    """Order of floats as order of integers, int32."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def is_kept(rank, ids, edge, last):
    """Whatever ranks above the edge, and at the edge the ids up to the last."""
    return (rank > edge) | ((rank == edge) & (ids <= last))
