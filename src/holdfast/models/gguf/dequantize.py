"""Dequantise GGUF's number formats (`StoredType`), and MXFP4 as safetensors hold it, to floating point.

A quantised tensor is a run of blocks: `block_len` numbers in `block_bytes` bytes. Each block
becomes fp32 exactly as its format defines it and is rounded once to the requested dtype. A few
thousand blocks are converted at a time, so that the scratch memory stays in the cache; the bits do
not depend on their number.

The `gguf` package's `quants.dequantize` gives the same bits (a test compares all formats), but
takes 1.5 to 3.8 times the CPU time of this module, makes an fp32 copy of the whole tensor, and its
import alone takes 0.15 s of an engine's start.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.models.gguf.reader import StoredType

_FLOAT_DTYPES: dict[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CHUNK_LEN = 1 << 20
_MXFP4_BLOCK = 32


def dequantize(raw: Tensor, stored: StoredType, dtype: torch.dtype | None = None) -> Tensor:
    """Return the numbers in `raw` (uint8 [num_bytes]) as a flat tensor.

    Without a dtype, float formats stay as stored (and share `raw`'s memory) and quantised ones
    become fp32.
    """
    if stored.name in _FLOAT_DTYPES:
        floats = raw.view(_FLOAT_DTYPES[stored.name])
        return floats if dtype is None else floats.to(dtype)
    blocks = raw.view(-1, stored.block_bytes)  # [B, block_bytes]
    out = torch.empty(blocks.shape[0], stored.block_len, dtype=dtype or torch.float32)  # [B, block_len]
    unpack, step = _UNPACK[stored.name], _CHUNK_LEN // stored.block_len
    scratch = torch.empty(min(step, blocks.shape[0]), stored.block_len)
    for start in range(0, blocks.shape[0], step):
        some, target = blocks[start : start + step], out[start : start + step]
        values = target if out.dtype == torch.float32 else scratch[: some.shape[0]]
        unpack(some, values)
        if values is not target:
            target.copy_(values)
    return out.view(-1)


def dequantize_mxfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers of MXFP4 blocks: 32 numbers of 4 bits (E2M1), and one power of two (E8M0) for each block.

    packed uint8 [rows, blocks, 16], the even numbers of a block in the low halves of its bytes; scales
    uint8 [rows, blocks] -> fp32 [rows, 32 * blocks].
    """
    codes = torch.stack((packed & 0x0F, packed >> 4), -1)  # [rows, blocks, 16, 2]
    out = torch.empty(scales.numel(), _MXFP4_BLOCK)
    _write_mxfp4(codes.view(-1, _MXFP4_BLOCK), scales.reshape(-1), out)
    return out.view(packed.shape[0], -1)


# Each function fills `out` (fp32 [B, block_len]) from `blocks` (uint8 [B, block_bytes]). The
# product of a 16-bit scale, a 6-bit scale and a 5-bit number is exact in fp32, so only the last
# operation of each function rounds.


def _scales(blocks: Tensor, start: int, count: int) -> Tensor:
    """`count` fp16 numbers of each block, as fp32 [B, count]."""
    return blocks[:, start : start + 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Unpack uint8 [B, n] to uint8 [B, 2, n]: the low halves, then the high halves."""
    halves = torch.empty(packed.shape[0], 2, packed.shape[1], dtype=torch.uint8)
    low, high, mask = halves[:, 0], halves[:, 1], 0x0F
    if packed.stride(0) % 4 == 0 and packed.storage_offset() % 4 == 0:  # four bytes at once
        packed, low, high = (each.view(torch.int32) for each in (packed, low, high))
        mask = 0x0F0F0F0F
    torch.bitwise_and(packed, mask, out=low)
    torch.bitwise_right_shift(packed, 4, out=high).bitwise_and_(mask)
    return halves


def _fields(packed: Tensor, width: int) -> Tensor:
    """Unpack uint8 [..., n] to uint8 [..., 8 / width, n]: the bit fields of each byte, lowest first."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8).unsqueeze(-1)
    return (packed.unsqueeze(-2) >> shifts) & ((1 << width) - 1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """Unpack uint8 [B, 4] to uint8 [B, 32]: bit i is worth 16 to number i."""
    return _fields(packed.unsqueeze(-1), 1).view(-1, 32) << 4


def _q4_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(_nibbles(blocks[:, 2:]).view(-1, 32))
    out.sub_(8.0).mul_(_scales(blocks, 0, 1))


def _q4_1(blocks: Tensor, out: Tensor) -> None:
    scales = _scales(blocks, 0, 2)
    out.copy_(_nibbles(blocks[:, 4:]).view(-1, 32))
    out.mul_(scales[:, :1]).add_(scales[:, 1:])


def _q5_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(_nibbles(blocks[:, 6:]).view(-1, 32) | _fifth_bits(blocks[:, 2:6]))
    out.sub_(16.0).mul_(_scales(blocks, 0, 1))


def _q5_1(blocks: Tensor, out: Tensor) -> None:
    scales = _scales(blocks, 0, 2)
    out.copy_(_nibbles(blocks[:, 8:]).view(-1, 32) | _fifth_bits(blocks[:, 4:8]))
    out.mul_(scales[:, :1]).add_(scales[:, 1:])


def _q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8))
    out.mul_(_scales(blocks, 0, 1))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum of each 32 numbers of a Q4_K or Q5_K block, fp32 [B, 8, 1] each.

    fp16 d, fp16 dmin, then twelve bytes of 6-bit numbers: EEaaaaaa x4, eebbbbbb x4, bbbbaaaa x4.
    """
    outer = _scales(blocks, 0, 2)
    low, high, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat([low & 0x3F, (rest & 0x0F) | ((low >> 2) & 0x30)], dim=1)
    minimum = torch.cat([high & 0x3F, (rest >> 4) | ((high >> 2) & 0x30)], dim=1)
    return (outer[:, :1] * scale).unsqueeze(-1), (outer[:, 1:] * minimum).unsqueeze(-1)


def _q4_k(blocks: Tensor, out: Tensor) -> None:
    scale, minimum = _k_scales(blocks)
    grouped = out.view(-1, 8, 32)
    grouped.copy_(_nibbles(blocks[:, 16:].reshape(-1, 32)).view(-1, 8, 32))
    grouped.mul_(scale).sub_(minimum)


def _q5_k(blocks: Tensor, out: Tensor) -> None:
    scale, minimum = _k_scales(blocks)
    grouped = out.view(-1, 8, 32)
    low = _nibbles(blocks[:, 48:].reshape(-1, 32)).view(-1, 8, 32)
    grouped.copy_(low | (_fields(blocks[:, 16:48], 1) << 4))
    grouped.mul_(scale).sub_(minimum)


def _q6_k(blocks: Tensor, out: Tensor) -> None:
    scale = _scales(blocks, 208, 1) * blocks[:, 192:208].view(torch.int8)  # [B, 16]
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).view(-1, 8, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).view(-1, 8, 32)
    out.view(-1, 8, 32).copy_(low | (high << 4))
    out.sub_(32.0).view(-1, 16, 16).mul_(scale.unsqueeze(-1))


def _mxfp4(blocks: Tensor, out: Tensor) -> None:
    _write_mxfp4(_nibbles(blocks[:, 1:]).view(-1, 32), blocks[:, 0], out)


def _write_mxfp4(codes: Tensor, scales: Tensor, out: Tensor) -> None:
    """Fill out: codes uint8 [B, 32], scales uint8 [B] -> out fp32 [B, 32], with the bits of ggml: zeros are
    positive, and a scale of 255 is 2^128.

    A code has a sign, two bits of exponent and one of mantissa. At their places in fp16 they make the
    number divided by 2^14, also if it is subnormal. The numbers are doubled and the scales halved, so
    that every scale is a number of fp32.
    """
    wide = codes.to(torch.int16)
    bits = ((wide & 7) << 9) | ((wide >> 3) * -32768)
    out.copy_(bits.view(torch.float16))
    torch.add(torch.zeros(()), out, alpha=2.0**15, out=out)  # exact; -0 becomes 0
    halves = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 128)
    out.mul_(halves.to(torch.float32)[scales.long()].unsqueeze(-1))


_UNPACK: dict[str, Callable[[Tensor, Tensor], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
}
