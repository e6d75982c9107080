"""Inputs whose results show the order of summation.

Two orders of one sum differ by rounding errors, and rounding the result to 16 bits hides most of
those. Two constructions make the rounding errors the whole result:

    cancelling   weight [ A | A permuted ]                    input [ x | -x permuted alike ]
    spikes       weight +S at i, -S at j, elsewhere dust      input equal at i and j

A cancelling sum is zero in exact arithmetic, so its result consists of the rounding errors of all
partial sums. Dust is about one ulp of S in fp32. Between the spikes the partial sums round it to
whole ulps, so the result depends on which dust is added there, and in which groups. The places of
the spikes differ from column to column and cover all of K, so that two neighbours that change
places are noticed in some column as well.

The two kinds of columns alternate, and change places in the next weight of the same shape. The
weights are made from the shape alone: what holds for them is a property of shape, dtype, device and
library, not of a model's weights.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.numerics.arrays import (
    HOST_ARRAYS,
    Device,
    DType,
    Tensor,
    arrays_on,
    dtype_name,
    host,
)
from holdfast.numerics.backends.torch.noise import noise
from holdfast.numerics.elementary import Floats

NUM_GEMM_PROBES = 8
NUM_TOKEN_PROBES = 64
NUM_LOGITS_PROBES = 12
_EDGE_ULPS, _DRAWS_AT_ONCE, _ROWS_PER_EDGE = 7, 8192, 24
_ULP = 2.0**-23  # of fp32, relative to a power of two
_CANCELLING_STD = 0.02
# Of inputs and of columns: bf16 products lose one to three bits, because they are subnormal in fp32.
_TINY_INPUT, _TINY_COLUMN = 2.0**-66, 2.0**-63
MIN_COLUMNS = 256  # of all weights of one shape
_MAX_GROUPS = 16


def _spike(dtype: DType) -> float:
    """S. In fp16 ten times an input of a probe must not overflow, and an ulp of S in fp32 must not be zero."""
    return 2.0**4 if dtype_name(dtype) == "float16" else 2.0**15


def _rounded(numbers: Floats, dtype: DType) -> Tensor:
    """Return fp32 numbers in this dtype, of either library of arrays, in main memory."""
    return host(numbers).to(HOST_ARRAYS.dtype(dtype_name(dtype)))


def _floats(numbers: Floats, dtype: DType) -> Floats:
    """Return them rounded to this dtype, in fp32 again."""
    return _rounded(numbers, dtype).float().numpy()


def _normal(generator: np.random.Generator, *shape: int) -> Floats:
    return generator.standard_normal(shape, np.float32)


def _uniform(generator: np.random.Generator, *shape: int) -> Floats:
    return generator.random(shape, np.float32)


class GemmProbes:
    """Weights [N, K] and inputs [NUM_GEMM_PROBES, K] for one K. The first half of the inputs cancels,
    the second half is equal at the spikes. Every second cancelling input and column is
    tiny: their products are subnormal."""

    def __init__(self, in_features: int, dtype: DType, device: Device) -> None:
        self._width, self._dtype, self._arrays = in_features, dtype, arrays_on(device)
        self._rng = np.random.default_rng(in_features)
        self._generator = self._arrays.generator(in_features)  # of weights, on the device
        order = self._rng.permutation(in_features // 2)  # of a cancelling half
        self._order = self._arrays.from_numpy(order)
        # Groups of places. Inputs of the second half have one value for each group, and the spikes
        # of a pair are in one group.
        self._num_groups = max(1, min(_MAX_GROUPS, in_features // 4))
        self._group_len = in_features // self._num_groups
        places = self._rng.permutation(in_features)[: self._group_len * self._num_groups]
        self._grouped = self._arrays.from_numpy(places.reshape(self._num_groups, self._group_len))
        is_wide = dtype_name(dtype) != "float16"
        self._tiny_input, self._tiny_column = (_TINY_INPUT, _TINY_COLUMN) if is_wide else (1.0, 1.0)
        self._num_draws = self._num_pairs = 0
        inputs = np.concatenate((self._cancelling_inputs(order), self._grouped_inputs(places)))
        self.inputs = self._arrays.from_numpy(_rounded(inputs, dtype))

    def weights(self, out_features: int) -> Tensor:
        """Weights [N, K] in the dtype, others at each call."""
        first = self._num_draws % 2
        self._num_draws += 1
        weight = self._arrays.randn(out_features, self._width, generator=self._generator).to(self._dtype)
        self._cancel(weight[first::2])
        self._add_spikes(weight[1 - first :: 2])
        return weight

    def _cancel(self, columns: Tensor) -> None:
        half = self._width // 2
        columns.mul_(_CANCELLING_STD)
        columns[::2].mul_(self._tiny_column)
        columns[:, half : 2 * half] = columns[:, :half].index_select(1, self._order)

    def _add_spikes(self, columns: Tensor) -> None:
        """As many pairs of spikes in each column as it takes to cover K in a few weights."""
        count, spike = len(columns), _spike(self._dtype)
        columns.mul_(1.5 * spike * _ULP)
        num_pairs = self._num_groups * (self._group_len // 2)  # that have no place in common
        if not num_pairs or not count:
            return
        per_column = max(1, min(num_pairs // 4, -(-num_pairs // max(count, MIN_COLUMNS // 2))))
        number = self._arrays.arange(count * per_column)
        rows = number // per_column
        first, second = self._pairs(number + self._num_pairs)
        self._num_pairs += count * per_column
        columns[rows, first] = spike
        columns[rows, second] = -spike

    def _pairs(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of these pairs. A place of the first half of a group is paired with one of the
        second half; when all pairs were given, with the next one."""
        half = self._group_len // 2
        group, number = number % self._num_groups, number // self._num_groups
        place, turn = number % half, number // half
        return self._grouped[group, place], self._grouped[group, half + (place + turn) % half]

    def _cancelling_inputs(self, order: NDArray[np.int64]) -> Floats:
        count, half = NUM_GEMM_PROBES // 2, self._width // 2
        x = _normal(self._rng, count, self._width)
        x[1::2] *= np.exp2(2 * _normal(self._rng, count // 2, self._width))  # very different magnitudes
        x[::2] *= self._tiny_input
        x = _floats(x, self._dtype)
        x[:, half:] = 0
        x[:, half : 2 * half] = -x[:, :half][:, order]
        return x

    def _grouped_inputs(self, places: NDArray[np.int64]) -> Floats:
        shape = NUM_GEMM_PROBES - NUM_GEMM_PROBES // 2, self._num_groups
        signs = 1 - 2 * self._rng.integers(2, size=shape)
        values = ((1 + _uniform(self._rng, *shape)) * signs).astype(np.float32)
        x = np.ones((shape[0], self._width), np.float32)
        x[:, places] = values.repeat(self._group_len, 1)
        return x


def norm_inputs(width: int, count: int, dtype: DType) -> Tensor:
    """Return rows [count, width] for a norm, an eighth of each of the last two kinds: normal; values of very
    different magnitude; a spike and elsewhere squares just below half an ulp of its square, which
    are lost if they are added to it one by one, and not if they are added to each other first; a
    mean of squares that is nearly halfway between two fp32 numbers.
    """
    rng = np.random.default_rng(width)
    rows = _normal(rng, count, width)
    quarter, eighth = count // 4, count // 8
    rows[:quarter] *= np.exp2(3 * _normal(rng, quarter, width))
    spiked = rows[-2 * eighth : len(rows) - eighth]
    spike = 32.0
    size = spike * (0.49 * _ULP) ** 0.5 * (0.7 + 0.3 * _uniform(rng, *spiked.shape))
    spiked[...] = np.copysign(size, spiked)
    spiked[np.arange(len(spiked)), rng.integers(width, size=len(spiked))] = spike
    rows[len(rows) - eighth :] = _halfway_means(width, eighth, dtype, rng)
    return _rounded(rows, dtype)


def _halfway_means(width: int, count: int, dtype: DType, rng: np.random.Generator) -> Floats:
    """Return rows with one number, in 16 bits two (so that their sum of squares has one value in fp32, in any
    order). The best of many: the fraction of an ulp in their mean is nearest to one half."""
    is_fp32 = dtype.itemsize == 4
    terms = _normal(rng, 256 * count, 1 if is_fp32 or width == 1 else 2)
    squares = (_floats(terms, dtype) ** 2).sum(1, dtype=np.float32)
    in_ulps = np.frexp(squares.astype(np.float64) / width)[0] * 2**24
    best = np.argsort(np.abs(in_ulps - np.floor(in_ulps) - 0.5))[:count]
    rows = np.zeros((count, width), np.float32)
    rows[:, : terms.shape[1]] = terms[best]
    return rows


def edge_inputs(width: int, eps: float, dtype: DType, num_draws: int) -> Tensor:
    """Return rows [n, width] for a norm whose output is rounded to 16 bits. A change in the last bit of the
    factor 1 / rms moves an element across the edge between two numbers of 16 bits.

    Rows have all mantissas of bf16; two numbers are drawn until the factor is at an edge. The
    kernel's own factor may be a few ulps off, so there are rows for each of _EDGE_ULPS edges around
    the exact one.
    """
    if dtype.itemsize == 4 or width < 4:
        return _rounded(np.empty((0, width), np.float32), dtype)
    rng = np.random.default_rng(width)
    num_mantissas = min(width - 2, 128)
    mantissas = _floats((1 + rng.permutation(128)[:num_mantissas] / 128).astype(np.float32), dtype)
    base = np.resize(mantissas, width)
    base = base * (1 - 2 * rng.integers(2, size=width)).astype(np.float32)
    found: list[Any] = []
    for _ in range(0, num_draws, _DRAWS_AT_ONCE):
        drawn = _floats(3 * _normal(rng, _DRAWS_AT_ONCE, 2), dtype)
        squares = (base[2:].astype(np.float64) ** 2).sum() + (drawn.astype(np.float64) ** 2).sum(1)
        at_edge = _at_edge((1 / np.sqrt(squares / width + eps)).astype(np.float32), mantissas, dtype)
        chosen = np.concatenate([np.flatnonzero(edge)[:_ROWS_PER_EDGE] for edge in at_edge.T])
        rows = np.tile(base, (len(chosen), 1))
        rows[:, :2] = drawn[chosen]
        found.append(_rounded(rows, dtype))
    return host(np.concatenate(found))


def _at_edge(factor: Floats, values: Floats, dtype: DType) -> NDArray[np.bool_]:
    """Return whether factor * values rounds differently if the factor is one ulp larger: bool [n,
    _EDGE_ULPS], for the factors [n] and their neighbours."""
    around = np.arange(-(_EDGE_ULPS // 2), _EDGE_ULPS // 2 + 2, dtype=np.int32)
    factors = (np.ascontiguousarray(factor).view(np.int32)[:, None] + around).view(
        np.float32
    )  # [n, edges + 1]
    outputs = _floats(factors[..., None] * values, dtype)  # [n, edges + 1, values]
    differ: NDArray[np.bool_] = (outputs[:, 1:] != outputs[:, :-1]).any(-1)
    return differ


def rope_inputs(heads: int, cos: Floats, sin: Floats, count: int, dtype: DType) -> Tensor:
    """Return rows [count, heads * D] for a rotation by (cos, sin), fp32 [D / 2] each. In every second head
    the two products of the first half nearly cancel, in the next one those of the second half."""
    x = _normal(np.random.default_rng(heads), count, heads, 2, len(cos))
    scale = x[:, 1::2, 0].copy()
    x[:, 1::2, 0], x[:, 1::2, 1] = scale * sin, scale * cos
    x[:, 3::4] = x[:, 3::4, ::-1] * np.array([1.0, -1.0], np.float32)[:, None]
    return _rounded(x.reshape(count, -1), dtype)


def silu_inputs(width: int, count: int, dtype: DType) -> Tensor:
    """Return rows [count, 2 * width] of gate and up. The gates go through the numbers of 16 bits between
    2^-10 and 2^7, of both signs: all of them if there is room. In fp32 their lower bits are random."""
    rng = np.random.default_rng(width)
    mantissa_bits = 10 if dtype_name(dtype) == "float16" else 7
    steps = np.arange(17 << mantissa_bits)
    values = np.exp2((steps >> mantissa_bits) - 10.0) * (
        1 + (steps & ((1 << mantissa_bits) - 1)) * 2.0**-mantissa_bits
    )
    values = np.concatenate((values, -values))
    if dtype.itemsize == 4:
        values = values * (1 + rng.random(len(values)) * 2.0**-mantissa_bits)
    order = rng.permutation(len(values))
    gates = values[order[np.arange(count * width) % len(values)]].reshape(count, width)
    ups = 1 + _uniform(rng, count, width)
    ups[::2] = 1.0
    return _rounded(np.concatenate((gates.astype(np.float32), ups), 1), dtype)


def logits_inputs(vocab: int) -> Floats:
    """Return rows of logits, fp32 [NUM_LOGITS_PROBES, vocab], by turns: normal; nearly equal; one large, and
    elsewhere logits whose exponentials are just below half an ulp of its exponential, in fp32 and
    in fp64."""
    rng = np.random.default_rng(vocab)
    rows = _normal(rng, NUM_LOGITS_PROBES, vocab)
    rows[::4] *= 4
    rows[1::4] *= 0.01
    for start, depth in ((2, 16.7), (3, 36.8)):  # log(2^24), log(2^53)
        spiked = rows[start::4]
        spiked[...] = -depth - 0.3 * _uniform(rng, *spiked.shape)
        spiked[np.arange(len(spiked)), rng.integers(vocab, size=len(spiked))] = 0.0
    return rows


def few_logits_inputs(vocab: int, count: int) -> Floats:
    """Return rows of logits, fp32 [count, vocab], for a small vocabulary: one is 0, the others are equal. A
    change in the last bit of their exponential is one in the last bits of the sum."""
    rng = np.random.default_rng(vocab)
    rows = np.repeat(-5 * _uniform(rng, count, 1), vocab, 1)
    rows[np.arange(count), rng.integers(vocab, size=count)] = 0.0
    return rows


def noise_inputs(vocab: int, seeds: Sequence[int], position: int, temperatures: Sequence[float]) -> Floats:
    """Return rows of logits, fp32 [seeds, vocab], that the noise of their seeds makes equal: the sampled
    token depends on the last bit of noise and logits."""
    ids = np.arange(vocab)
    noises = np.stack([noise(seed, position, ids) for seed in seeds])
    return -noises * np.array(temperatures, np.float32)[:, None]


def top_p_inputs(vocab: int, count: int) -> Floats:
    """Return rows of logits, fp32 [count, vocab], with two likely tokens at random places."""
    rng = np.random.default_rng(vocab)
    rows = np.full((count, vocab), -1e4, np.float32)
    for row in rows:
        row[rng.permutation(vocab)[:2]] = rng.random() * 2, 0.0
    return rows


def attention_inputs(
    context: int,
    queries: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: DType,
    device: Device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [queries, H, D], keys and values [context, KVH, D] whose sums have spikes.

    Queries are zero in even heads: all positions weigh the same, so the output is the sum of the
    values. In odd heads they have one size, and the keys have spikes, so a score consists of dust.
    Values have spikes at two positions of each column, and dust at the others.
    """
    rng = np.random.default_rng(head_dim)
    spike = _spike(dtype)

    def with_spikes(dust: Floats) -> Floats:
        """Spikes at two places of the last dimension, at distances of every magnitude."""
        length = dust.shape[-1]
        if length < 2:
            return dust
        uniform = _uniform(rng, 2, *dust.shape[:-1])
        distance = np.exp2(uniform[0] * math.log2(length)).astype(np.int64).clip(1, length - 1)
        first = (uniform[1] * (length - distance)).astype(np.int64)
        np.put_along_axis(dust, first[..., None], spike, -1)
        np.put_along_axis(dust, (first + distance)[..., None], -spike, -1)
        return dust

    q = np.zeros((queries, heads, head_dim), np.float32)
    q[:, 1::2] = 1 + _uniform(rng, queries, heads // 2, 1)
    k = with_spikes(_normal(rng, context, kv_heads, head_dim) * np.float32(spike * _ULP * 8))
    v = with_spikes(_normal(rng, kv_heads, head_dim, context) * np.float32(spike * _ULP * 1.5))
    parts = (q, k, np.ascontiguousarray(v.transpose(2, 0, 1)))
    made = [arrays_on(device).from_numpy(_rounded(part, dtype)) for part in parts]
    return made[0], made[1], made[2]
