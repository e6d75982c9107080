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

import numpy as np
import torch
from torch import Tensor

from holdfast.numerics.backends.torch.sampling import noise

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


def _spike(dtype: torch.dtype) -> float:
    """S. In fp16 ten times an input of a probe must not overflow, and an ulp of S in fp32 must not be zero."""
    return 2.0**4 if dtype is torch.float16 else 2.0**15


class GemmProbes:
    """Weights [N, K] and inputs [NUM_GEMM_PROBES, K] for one K. The first half of the inputs cancels,
    the second half is equal at the spikes. Every second cancelling input and column is
    tiny: their products are subnormal."""

    def __init__(self, in_features: int, dtype: torch.dtype, device: torch.device) -> None:
        self._width, self._dtype, self._device = in_features, dtype, device
        self._generator = torch.Generator(device).manual_seed(in_features)
        self._order = self._permutation(in_features // 2)  # of a cancelling half
        # Groups of places. Inputs of the second half have one value for each group, and the spikes
        # of a pair are in one group.
        self._num_groups = max(1, min(_MAX_GROUPS, in_features // 4))
        self._group_len = in_features // self._num_groups
        self._grouped = self._permutation(in_features)[: self._group_len * self._num_groups].view(
            self._num_groups, self._group_len
        )
        is_wide = dtype is not torch.float16
        self._tiny_input, self._tiny_column = (_TINY_INPUT, _TINY_COLUMN) if is_wide else (1.0, 1.0)
        self._num_draws = self._num_pairs = 0
        self.inputs = torch.cat((self._cancelling_inputs(), self._grouped_inputs())).to(dtype)

    def weights(self, out_features: int) -> Tensor:
        """Weights [N, K] in the dtype, others at each call."""
        first = self._num_draws % 2
        self._num_draws += 1
        weight = torch.empty((out_features, self._width), dtype=self._dtype, device=self._device)
        weight.normal_(generator=self._generator)
        self._cancel(weight[first::2])
        self._add_spikes(weight[1 - first :: 2])
        return weight

    def _cancel(self, columns: Tensor) -> None:
        half = self._width // 2
        columns *= _CANCELLING_STD
        columns[::2] *= self._tiny_column
        columns[:, half : 2 * half] = columns[:, :half].index_select(1, self._order)

    def _add_spikes(self, columns: Tensor) -> None:
        """As many pairs of spikes in each column as it takes to cover K in a few weights."""
        count, spike = len(columns), _spike(self._dtype)
        columns *= 1.5 * spike * _ULP
        num_pairs = self._num_groups * (self._group_len // 2)  # that have no place in common
        if not num_pairs or not count:
            return
        per_column = max(1, min(num_pairs // 4, -(-num_pairs // max(count, MIN_COLUMNS // 2))))
        number = torch.arange(count * per_column, device=self._device) + self._num_pairs
        self._num_pairs += count * per_column
        rows = torch.arange(count, device=self._device).repeat_interleave(per_column)
        first, second = self._pairs(number)
        columns[rows, first] = spike
        columns[rows, second] = -spike

    def _pairs(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of these pairs. A place of the first half of a group is paired with one of the
        second half; when all pairs were given, with the next one."""
        half = self._group_len // 2
        group, number = number % self._num_groups, number // self._num_groups
        place, turn = number % half, number // half
        return self._grouped[group, place], self._grouped[group, half + (place + turn) % half]

    def _cancelling_inputs(self) -> Tensor:
        count, half = NUM_GEMM_PROBES // 2, self._width // 2
        x = self._normal(count, self._width)
        x[1::2] *= torch.exp2(2 * self._normal(count // 2, self._width))  # very different magnitudes
        x[::2] *= self._tiny_input
        x = x.to(self._dtype).to(torch.float32)
        x[:, half:] = 0
        x[:, half : 2 * half] = -x[:, :half].index_select(1, self._order)
        return x

    def _grouped_inputs(self) -> Tensor:
        count = NUM_GEMM_PROBES - NUM_GEMM_PROBES // 2
        values = (1 + torch.rand(count, self._num_groups, generator=self._generator, device=self._device)) * (
            1 - 2 * self._integers(2, count * self._num_groups).view(count, self._num_groups)
        )
        x = torch.ones((count, self._width), device=self._device)
        x[:, self._grouped.flatten()] = values.repeat_interleave(self._group_len, 1)
        return x

    def _permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._generator, device=self._device)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)

    def _integers(self, end: int, count: int) -> Tensor:
        return torch.randint(end, (count,), generator=self._generator, device=self._device)


def norm_inputs(width: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return rows [count, width] for a norm, an eighth of each of the last two kinds: normal; values of very
    different magnitude; a spike and elsewhere squares just below half an ulp of its square, which
    are lost if they are added to it one by one, and not if they are added to each other first; a
    mean of squares that is nearly halfway between two fp32 numbers.
    """
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn((count, width), generator=generator)
    quarter, eighth = count // 4, count // 8
    rows[:quarter] *= torch.exp2(3 * torch.randn((quarter, width), generator=generator))
    spiked = rows[-2 * eighth : -eighth]
    spike = 32.0
    size = spike * (0.49 * _ULP) ** 0.5 * (0.7 + 0.3 * torch.rand(spiked.shape, generator=generator))
    spiked.copy_(size.copysign(spiked))
    places = torch.randint(width, (eighth,), generator=generator)
    spiked[torch.arange(eighth), places] = spike
    rows[-eighth:] = _halfway_means(width, eighth, dtype, generator)
    return rows.to(dtype)


def _halfway_means(width: int, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return rows with one number, in 16 bits two (so that their sum of squares has one value in fp32, in any
    order). The best of many: the fraction of an ulp in their mean is nearest to one half."""
    terms = torch.randn((256 * count, 1 if dtype is torch.float32 or width == 1 else 2), generator=generator)
    squares = terms.to(dtype).float().square().sum(1)
    in_ulps = torch.frexp(squares.double() / width).mantissa * 2**24
    best = (in_ulps - in_ulps.floor() - 0.5).abs().topk(count, largest=False).indices
    rows = torch.zeros((count, width))
    rows[:, : terms.shape[1]] = terms[best]
    return rows


def edge_inputs(width: int, eps: float, dtype: torch.dtype, num_draws: int) -> Tensor:
    """Return rows [n, width] for a norm whose output is rounded to 16 bits. A change in the last bit of the
    factor 1 / rms moves an element across the edge between two numbers of 16 bits.

    Rows have all mantissas of bf16; two numbers are drawn until the factor is at an edge. The
    kernel's own factor may be a few ulps off, so there are rows for each of _EDGE_ULPS edges around
    the exact one.
    """
    if dtype is torch.float32 or width < 4:
        return torch.empty((0, width), dtype=dtype)
    generator = torch.Generator().manual_seed(width)
    num_mantissas = min(width - 2, 128)
    mantissas = (1 + torch.randperm(128, generator=generator)[:num_mantissas] / 128).to(dtype)
    base = mantissas.repeat(-(-width // num_mantissas))[:width].float()
    base *= 1 - 2 * torch.randint(2, (width,), generator=generator)
    found: list[Tensor] = []
    for _ in range(0, num_draws, _DRAWS_AT_ONCE):
        drawn = (3 * torch.randn((_DRAWS_AT_ONCE, 2), generator=generator)).to(dtype).float()
        squares = base[2:].double().square().sum() + drawn.double().square().sum(1)
        at_edge = _at_edge((squares / width + eps).rsqrt().float(), mantissas)  # [draws, edges]
        chosen = torch.cat([edge.nonzero()[:_ROWS_PER_EDGE, 0] for edge in at_edge.T])
        rows = base.repeat(len(chosen), 1)
        rows[:, :2] = drawn[chosen]
        found.append(rows.to(dtype))
    return torch.cat(found)


def _at_edge(factor: Tensor, values: Tensor) -> Tensor:
    """Return whether factor * values rounds differently if the factor is one ulp larger: bool [n,
    _EDGE_ULPS], for the factors [n] and their neighbours."""
    around = torch.arange(-(_EDGE_ULPS // 2), _EDGE_ULPS // 2 + 2, dtype=torch.int32)
    factors = (factor.view(torch.int32)[:, None] + around).view(torch.float32)  # [n, edges + 1]
    outputs = (factors[..., None] * values.float()).to(values.dtype)  # [n, edges + 1, values]
    return (outputs[:, 1:] != outputs[:, :-1]).any(-1)


def rope_inputs(heads: int, cos: Tensor, sin: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return rows [count, heads * D] for a rotation by (cos, sin), fp32 [D / 2] each. In every second head
    the two products of the first half nearly cancel, in the next one those of the second half."""
    generator = torch.Generator().manual_seed(heads)
    x = torch.randn((count, heads, 2, len(cos)), generator=generator)
    scale = x[:, 1::2, 0].clone()
    x[:, 1::2, 0], x[:, 1::2, 1] = scale * sin, scale * cos
    x[:, 3::4] = x[:, 3::4].flip(2) * torch.tensor([1.0, -1.0])[:, None]
    return x.flatten(1).to(dtype)


def silu_inputs(width: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return rows [count, 2 * width] of gate and up. The gates go through the numbers of 16 bits between
    2^-10 and 2^7, of both signs: all of them if there is room. In fp32 their lower bits are random."""
    generator = torch.Generator().manual_seed(width)
    mantissa_bits = 10 if dtype is torch.float16 else 7
    steps = torch.arange(17 << mantissa_bits)
    values = torch.exp2((steps >> mantissa_bits) - 10.0) * (
        1 + (steps & ((1 << mantissa_bits) - 1)) * 2.0**-mantissa_bits
    )
    values = torch.cat((values, -values))
    if dtype is torch.float32:
        values = values * (1 + torch.rand(len(values), generator=generator) * 2.0**-mantissa_bits)
    order = torch.randperm(len(values), generator=generator)
    gates = values[order[torch.arange(count * width) % len(values)]].view(count, width)
    ups = 1 + torch.rand((count, width), generator=generator)
    ups[::2] = 1.0
    return torch.cat((gates, ups), 1).to(dtype)


def logits_inputs(vocab: int) -> Tensor:
    """Return rows of logits, fp32 [NUM_LOGITS_PROBES, vocab], by turns: normal; nearly equal; one large, and
    elsewhere logits whose exponentials are just below half an ulp of its exponential, in fp32 and
    in fp64."""
    generator = torch.Generator().manual_seed(vocab)
    rows = torch.randn((NUM_LOGITS_PROBES, vocab), generator=generator)
    rows[::4] *= 4
    rows[1::4] *= 0.01
    for start, depth in ((2, 16.7), (3, 36.8)):  # log(2^24), log(2^53)
        spiked = rows[start::4]
        spiked.copy_(-depth - 0.3 * torch.rand(spiked.shape, generator=generator))
        spiked[torch.arange(len(spiked)), torch.randint(vocab, (len(spiked),), generator=generator)] = 0.0
    return rows


def few_logits_inputs(vocab: int, count: int) -> Tensor:
    """Return rows of logits, fp32 [count, vocab], for a small vocabulary: one is 0, the others are equal. A
    change in the last bit of their exponential is one in the last bits of the sum."""
    generator = torch.Generator().manual_seed(vocab)
    rows = (-5 * torch.rand((count, 1), generator=generator)).repeat(1, vocab)
    rows[torch.arange(count), torch.randint(vocab, (count,), generator=generator)] = 0.0
    return rows


def noise_inputs(vocab: int, seeds: Sequence[int], position: int, temperatures: Sequence[float]) -> Tensor:
    """Return rows of logits, fp32 [seeds, vocab], that the noise of their seeds makes equal: the sampled
    token depends on the last bit of noise and logits."""
    ids = np.arange(vocab)
    noises = np.stack([noise(seed, position, ids) for seed in seeds])
    return torch.from_numpy(-noises * np.array(temperatures, np.float32)[:, None])


def top_p_inputs(vocab: int, count: int) -> Tensor:
    """Return rows of logits, fp32 [count, vocab], with two likely tokens at random places."""
    generator = torch.Generator().manual_seed(vocab)
    rows = torch.full((count, vocab), -1e4)
    places = torch.stack([torch.randperm(vocab, generator=generator)[:2] for _ in range(count)])
    gaps = torch.rand(count, generator=generator) * 2
    return rows.scatter(1, places, torch.stack((gaps, torch.zeros(count)), 1))


def attention_inputs(
    context: int,
    queries: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [queries, H, D], keys and values [context, KVH, D] whose sums have spikes.

    Queries are zero in even heads: all positions weigh the same, so the output is the sum of the
    values. In odd heads they have one size, and the keys have spikes, so a score consists of dust.
    Values have spikes at two positions of each column, and dust at the others.
    """
    generator = torch.Generator(device).manual_seed(head_dim)
    spike = _spike(dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def with_spikes(dust: Tensor) -> Tensor:
        """Spikes at two places of the last dimension, at distances of every magnitude."""
        length = dust.shape[-1]
        if length < 2:
            return dust
        uniform = torch.rand((2, *dust.shape[:-1]), generator=generator, device=device)
        distance = torch.exp2(uniform[0] * math.log2(length)).long().clamp(1, length - 1)
        first = (uniform[1] * (length - distance)).long()
        spikes = torch.stack((first, first + distance), -1)
        return dust.scatter(-1, spikes[..., :1], spike).scatter(-1, spikes[..., 1:], -spike)

    q = torch.zeros((queries, heads, head_dim), device=device)
    q[:, 1::2] = 1 + torch.rand((queries, heads // 2, 1), generator=generator, device=device)
    k = with_spikes(normal(context, kv_heads, head_dim) * spike * _ULP * 8)
    v = with_spikes(normal(kv_heads, head_dim, context) * spike * _ULP * 1.5).permute(2, 0, 1)
    return q.to(dtype), k.to(dtype), v.contiguous().to(dtype)
