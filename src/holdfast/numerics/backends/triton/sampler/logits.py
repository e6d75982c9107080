"""Device functions shared by the sampling kernels: clean logits, temperature, ranks, and the argmax
of a row.

Each is a comparison or a formula of one element, so no result depends on an order of operations.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))
NO_ID = tl.constexpr(0x7FFFFFFF)
LOWEST_RANK = tl.constexpr(-(1 << 31))
CHUNK = 4096  # token ids per program


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
def argmax_of(values, ids):
    """The largest value and its id, ties to the lowest id."""
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, ids, NO_ID), 0)


@triton.jit
def load_argmax(best, best_ids, row, CHUNKS: tl.constexpr, SLOTS: tl.constexpr):
    """The argmax of a row, from the argmax of each of its chunks."""
    slot = tl.arange(0, SLOTS)
    values = tl.load(best + row * CHUNKS + slot, mask=slot < CHUNKS, other=-INFINITY)
    return argmax_of(values, tl.load(best_ids + row * CHUNKS + slot, mask=slot < CHUNKS, other=NO_ID))


@triton.jit
def scale_logits(x, temperature):
    """z = logit / temperature."""
    return clean(tl.math.div_rn(x, temperature + tl.zeros_like(x)))


@triton.jit
def rank_of(z):
    """An int32 that sorts as the float does."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def is_kept(rank, ids, threshold, last):
    """Whether a token is kept: its rank is above the threshold, or at the threshold with an id of
    at most `last`."""
    return (rank > threshold) | ((rank == threshold) & (ids <= last))
