"""Inputs whose results show the order of summation.

Two orders of one sum differ by rounding errors, and rounding the result to 16 bits hides most of
those. Two constructions make the rounding errors the whole result:

    cancelling   weight [ A | A permuted ]       input [ x | -x permuted alike ]
    spikes       weight +S at i, -S at j, and elsewhere dust of about one ulp of S      input equal at i and j

A cancelling sum is zero in exact arithmetic, so its result consists of the rounding errors of all
partial sums. In a sum with spikes the partial sums between i and j round the dust to whole ulps of
S, so the result depends on which dust is added between the spikes, and in which groups. i and j are
random and differ from column to column: any two orders of summation differ between some i and j.

GEMMs have both kinds of columns in turn, so that every block of columns has both. The weights are
made from the shape alone: what holds for them is a property of shape, dtype, device and library,
not of a model's weights.
"""

import math

import torch
from torch import Tensor

NUM_GEMM_PROBES = 8
NUM_TOKEN_PROBES = 64
_ULP = 2.0**-23  # of fp32, relative to a power of two
_CANCELLING_STD = 0.02
_MAX_GROUPS = 16


def _spike(dtype: torch.dtype) -> float:
    """S. In fp16 ten times an input of a probe must not overflow, and an ulp of S in fp32 must not be zero."""
    return 2.0**4 if dtype is torch.float16 else 2.0**15


class GemmProbes:
    """Weights [N, K] and inputs [NUM_GEMM_PROBES, K] for one K. The first half of the inputs cancels
    in the even columns, the second half is equal at the spikes of the odd columns.
    """

    def __init__(self, in_features: int, dtype: torch.dtype, device: torch.device) -> None:
        self._width, self._dtype, self._device = in_features, dtype, device
        self._generator = torch.Generator(device).manual_seed(in_features)
        self._order = self._permutation(in_features // 2)  # of a cancelling half
        # Groups of places; the inputs with spikes have one value for each group, and spikes i and j
        # are in one group.
        self._num_groups = max(1, min(_MAX_GROUPS, in_features // 4))
        self._grouped = self._permutation(in_features)[: self._group_len * self._num_groups].view(
            self._num_groups, self._group_len
        )
        self.inputs = torch.cat((self._cancelling_inputs(), self._grouped_inputs())).to(dtype)

    @property
    def _group_len(self) -> int:
        return self._width // self._num_groups

    def weights(self, out_features: int) -> Tensor:
        """[N, K] in the dtype: even columns cancel, odd columns have spikes."""
        width, half = self._width, self._width // 2
        weight = torch.empty((out_features, width), dtype=self._dtype, device=self._device)
        weight.normal_(generator=self._generator)
        even, odd = weight[::2], weight[1::2]
        even *= _CANCELLING_STD
        even[:, half : 2 * half] = even[:, :half].index_select(1, self._order)
        spike = _spike(self._dtype)
        odd *= 1.5 * spike * _ULP
        if self._group_len > 1 and len(odd):
            rows = torch.arange(len(odd), device=self._device)
            first, second = self._spikes(len(odd))
            odd[rows, first] = spike
            odd[rows, second] = -spike
        return weight

    def _spikes(self, count: int) -> tuple[Tensor, Tensor]:
        """Two different places of one group, for each of `count` columns."""
        group = self._integers(self._num_groups, count)
        first = self._integers(self._group_len, count)
        second = (first + 1 + self._integers(self._group_len - 1, count)) % self._group_len
        return self._grouped[group, first], self._grouped[group, second]

    def _cancelling_inputs(self) -> Tensor:
        count, half = NUM_GEMM_PROBES // 2, self._width // 2
        x = self._normal(count, self._width)
        x[1::2] *= torch.exp2(2 * self._normal(count // 2, self._width))  # very different magnitudes
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
    """Rows [count, width] for a sum of squares. A fourth are normal, a fourth have values of very
    different magnitude. The others have a spike at a random place and elsewhere values whose
    squares are just below half an ulp of the spike's square: they are lost if they are added to it
    one by one, and not if they are added to each other first.
    """
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn((count, width), generator=generator)
    quarter = count // 4
    rows[quarter : 2 * quarter] *= torch.exp2(3 * torch.randn((quarter, width), generator=generator))
    spiked = rows[2 * quarter :]
    spike = 32.0
    size = spike * (0.49 * 2.0**-23) ** 0.5 * (0.7 + 0.3 * torch.rand(spiked.shape, generator=generator))
    spiked.copy_(size.copysign(spiked))
    places = torch.randint(width, (len(spiked),), generator=generator)
    spiked[torch.arange(len(spiked)), places] = spike
    return rows.to(dtype)


def rope_inputs(heads: int, cos: Tensor, sin: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Rows [count, heads * D] for a rotation by (cos, sin), fp32 [D / 2] each. In every second head
    the two products of the first half nearly cancel, in the next one those of the second half."""
    generator = torch.Generator().manual_seed(heads)
    x = torch.randn((count, heads, 2, len(cos)), generator=generator)
    scale = x[:, 1::2, 0].clone()
    x[:, 1::2, 0], x[:, 1::2, 1] = scale * sin, scale * cos
    x[:, 3::4] = x[:, 3::4].flip(2) * torch.tensor([1.0, -1.0])[:, None]
    return x.flatten(1).to(dtype)


def silu_inputs(width: int, count: int, dtype: torch.dtype) -> Tensor:
    """Rows [count, 2 * width] of gate and up. The gates go through the numbers of 16 bits between
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


def logits_inputs(vocab: int, count: int) -> Tensor:
    """Rows of logits, fp32 [count, vocab]. A half are normal; the others have one large logit, and
    elsewhere logits whose exponentials are just below half an ulp of its exponential, in fp32 or in
    fp64."""
    generator = torch.Generator().manual_seed(vocab)
    rows = 4 * torch.randn((count, vocab), generator=generator)
    spiked = rows[count // 2 :]
    depth = torch.tensor([16.7, 36.8]).repeat(len(spiked))[: len(spiked), None]  # log(2^24), log(2^53)
    spiked.copy_(-depth - 0.3 * torch.rand(spiked.shape, generator=generator))
    places = torch.randint(vocab, (len(spiked),), generator=generator)
    spiked[torch.arange(len(spiked)), places] = 0.0
    return rows


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
