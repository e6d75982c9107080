"""Weights in the quantised blocks of a GGUF file, as they are stored.

A backend that can compute with them (`BlockBackend`) keeps them; for others they are dequantised. The
product is defined in `backends/c/blocks.h`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from holdfast.numerics.arrays import Tensor, host

if TYPE_CHECKING:
    from holdfast.numerics.ops import Linear


@dataclass(frozen=True)
class BlockFormat:
    """A block: `length` numbers in `num_bytes` bytes. scales: where its fp16 scales are."""

    type_number: int  # GGUF's
    length: int
    num_bytes: int
    scales: slice


BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(2, 32, 18, slice(0, 2)),
    "Q4_1": BlockFormat(3, 32, 20, slice(0, 4)),
    "Q5_0": BlockFormat(6, 32, 22, slice(0, 2)),
    "Q5_1": BlockFormat(7, 32, 24, slice(0, 4)),
    "Q8_0": BlockFormat(8, 32, 34, slice(0, 2)),
    "Q4_K": BlockFormat(12, 256, 144, slice(0, 4)),
    "Q5_K": BlockFormat(13, 256, 176, slice(0, 4)),
    "Q6_K": BlockFormat(14, 256, 210, slice(208, 210)),
}


@dataclass(frozen=True)
class Blocks:
    """A matrix [N, K] in blocks. data may be memory of the mapped file: do not write to it."""

    format: str
    data: Tensor  # uint8 [N, bytes of a row]
    in_features: int

    @property
    def out_features(self) -> int:
        return self.data.shape[0]


@runtime_checkable
class BlockSource(Protocol):
    """A checkpoint with tensors in blocks."""

    def block_formats(self) -> frozenset[str]:
        """Return the formats of `BLOCK_FORMATS` that its matrices are stored in."""

    def blocks(self, name: str) -> Blocks | None:
        """Return the tensor of this name; None if it is not stored in one of these formats."""


@runtime_checkable
class BlockBackend(Protocol):
    """A backend that can compute with blocks."""

    @property
    def block_formats(self) -> frozenset[str]:
        """The formats that it keeps; the others are dequantised."""

    def pack_blocks(self, parts: Sequence[Blocks], bias: Tensor | None = None) -> "Linear":
        """Return several matrices of one input, fused along the output dimension."""

    def embed_blocks(self, table: Blocks, token_ids: Tensor) -> Tensor:
        """token_ids int64 [rows] -> [rows, K], each number rounded once. A negative id reads row 0."""

    def embed_packed(self, table: "Linear", token_ids: Tensor) -> Tensor:
        """As `embed_blocks`, from a weight that `pack_blocks` made of one part: a tied LM head."""


def find_bad_scale(format_name: str, data: Any) -> int | None:
    """Return the first block with a scale that is infinite or NaN. data: uint8 [bytes]; other formats have
    none."""
    form = BLOCK_FORMATS.get(format_name)
    if form is None:
        return None
    for at in range(form.scales.start + 1, form.scales.stop, 2):  # the high byte of an fp16 number
        exponents = data[at :: form.num_bytes] & 0x7C
        if int(exponents.max()) == 0x7C:
            return int(np.argmax(np.asarray(exponents == 0x7C)))
    return None


def random_blocks(format_name: str, out_features: int, in_features: int, seed: int) -> Blocks:
    """Return blocks of random bits whose scales are of all sizes from 2^-12 to 2^3 and of both signs, so that
    a sum in another order has other bits."""
    form, generator = BLOCK_FORMATS[format_name], np.random.default_rng(seed)
    num_blocks = out_features * in_features // form.length
    data = generator.integers(0, 256, (num_blocks, form.num_bytes), np.uint8)
    exponents = generator.integers(3, 19, data[:, form.scales][:, 1::2].shape, np.uint8)
    return blocks_of(format_name, data, exponents, out_features)


def blocks_of(format_name: str, data: Any, exponents: Any, out_features: int) -> Blocks:
    """Return a matrix of the blocks `data`, uint8 [blocks, bytes], whose scales get these exponents, uint8
    [blocks, scales] from 1 to 30. data is changed."""
    form = BLOCK_FORMATS[format_name]
    high = data[:, form.scales][:, 1::2]  # sign, exponent and two bits of the mantissa
    data[:, form.scales][:, 1::2] = (high & 0x83) | (exponents << 2)
    in_features = data.shape[0] * form.length // out_features
    return Blocks(format_name, host(data.reshape(out_features, -1)), in_features)
