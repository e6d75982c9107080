"""Dequantise GGUF's number formats (`StoredType`), and MXFP4 as safetensors hold it, to fp32.

A quantised tensor is a run of blocks: `block_len` numbers in `block_bytes` bytes. Each block
becomes fp32 exactly as its format defines it. A few thousand blocks are converted at a time, so that the
scratch memory stays in the cache, by several threads; the bits do not depend on their number.

The `gguf` package's `quants.dequantize` gives the same bits (a test compares all formats), but
takes more CPU time, makes several fp32 copies of the whole tensor, and its import alone takes 0.15 s of an
engine's start.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.models.gguf.reader import StoredType
from holdfast.numerics.arrays import HOST_ARRAYS, Tensor, host

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_FLOAT_DTYPES = {"F32": HOST_ARRAYS.float32, "F16": HOST_ARRAYS.float16, "BF16": HOST_ARRAYS.bfloat16}
_CHUNK_LEN = 1 << 18
_MXFP4_BLOCK = 32


def dequantize(raw: Bytes, stored: StoredType) -> Tensor:
    """Return the numbers in `raw` (uint8 [num_bytes]) as a flat array.

    Float formats stay as stored (and share `raw`'s memory) and quantised ones become fp32.
    """
    if stored.name in _FLOAT_DTYPES:
        return host(raw.view(_FLOAT_DTYPES[stored.name]))
    blocks = raw.reshape(-1, stored.block_bytes)  # [B, block_bytes]
    out = np.empty((len(blocks), stored.block_len), np.float32)
    unpack, step = _UNPACK[stored.name], _CHUNK_LEN // stored.block_len

    def convert(start: int) -> None:
        with np.errstate(all="ignore"):
            unpack(blocks[start : start + step], out[start : start + step])

    starts = range(0, len(blocks), step)
    if len(starts) > 1:
        with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
            list(pool.map(convert, starts))
    elif len(blocks):
        convert(0)
    return host(out.reshape(-1))


def dequantize_mxfp4(packed: Bytes, scales: Bytes) -> Tensor:
    """Return the numbers of MXFP4 blocks: 32 numbers of 4 bits (E2M1), and one power of two (E8M0) for each block.

    packed uint8 [rows, blocks, 16], the even numbers of a block in the low halves of its bytes; scales
    uint8 [rows, blocks] -> fp32 [rows, 32 * blocks].
    """
    codes = np.stack((packed & 0x0F, packed >> 4), -1)  # [rows, blocks, 16, 2]
    out = np.empty((scales.size, _MXFP4_BLOCK), np.float32)
    _write_mxfp4(codes.reshape(-1, _MXFP4_BLOCK), scales.reshape(-1), out)
    return host(out.reshape(len(packed), -1))


# Each function fills `out` (fp32 [B, block_len]) from `blocks` (uint8 [B, block_bytes]). The
# product of a 16-bit scale, a 6-bit scale and a 5-bit number is exact in fp32, so only the last
# operation of each function rounds.


def _scales(blocks: Bytes, start: int, count: int) -> Floats:
    """`count` fp16 numbers of each block, as fp32 [B, count]."""
    found = np.ascontiguousarray(blocks[:, start : start + 2 * count])
    return found.view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Unpack uint8 [B, n] to uint8 [B, 2, n]: the low halves, then the high halves."""
    halves = np.empty((len(packed), 2, packed.shape[1]), np.uint8)
    np.bitwise_and(packed, 0x0F, out=halves[:, 0])
    np.right_shift(packed, 4, out=halves[:, 1])
    return halves


def _fields(packed: Bytes, width: int) -> Bytes:
    """Unpack uint8 [..., n] to uint8 [..., 8 / width, n]: the bit fields of each byte, lowest first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    found: Bytes = (packed[..., None, :] >> shifts) & np.uint8((1 << width) - 1)
    return found


def _fifth_bits(packed: Bytes) -> Bytes:
    """Unpack uint8 [B, 4] to uint8 [B, 32]: bit i is worth 16 to number i."""
    return _fields(packed[..., None], 1).reshape(-1, 32) << np.uint8(4)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    out[...] = _nibbles(blocks[:, 2:]).reshape(-1, 32)
    out -= 8.0
    out *= _scales(blocks, 0, 1)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    scales = _scales(blocks, 0, 2)
    out[...] = _nibbles(blocks[:, 4:]).reshape(-1, 32)
    out *= scales[:, :1]
    out += scales[:, 1:]


def _q5_0(blocks: Bytes, out: Floats) -> None:
    out[...] = _nibbles(blocks[:, 6:]).reshape(-1, 32) | _fifth_bits(blocks[:, 2:6])
    out -= 16.0
    out *= _scales(blocks, 0, 1)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    scales = _scales(blocks, 0, 2)
    out[...] = _nibbles(blocks[:, 8:]).reshape(-1, 32) | _fifth_bits(blocks[:, 4:8])
    out *= scales[:, :1]
    out += scales[:, 1:]


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks[:, 2:].view(np.int8)
    out *= _scales(blocks, 0, 1)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of each 32 numbers of a Q4_K or Q5_K block, fp32 [B, 8, 1] each.

    fp16 d, fp16 dmin, then twelve bytes of 6-bit numbers: EEaaaaaa x4, eebbbbbb x4, bbbbaaaa x4.
    """
    outer = _scales(blocks, 0, 2)
    low, high, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = np.concatenate((low & 0x3F, (rest & 0x0F) | ((low >> 2) & 0x30)), 1)
    minimum = np.concatenate((high & 0x3F, (rest >> 4) | ((high >> 2) & 0x30)), 1)
    return (outer[:, :1] * scale)[..., None], (outer[:, 1:] * minimum)[..., None]


def _scaled(values: Bytes, blocks: Bytes, out: Floats) -> None:
    """Write values [B, 8, 32] times their scales, less their minima."""
    scale, minimum = _k_scales(blocks)
    grouped = out.reshape(-1, 8, 32)
    grouped[...] = values
    grouped *= scale
    grouped -= minimum


def _q4_k(blocks: Bytes, out: Floats) -> None:
    _scaled(_nibbles(blocks[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32), blocks, out)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    low = _nibbles(blocks[:, 48:].reshape(-1, 32)).reshape(-1, 8, 32)
    _scaled(low | (_fields(blocks[:, 16:48], 1) << np.uint8(4)), blocks, out)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    scale = _scales(blocks, 208, 1) * blocks[:, 192:208].view(np.int8)  # [B, 16]
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).reshape(-1, 8, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    out.reshape(-1, 8, 32)[...] = low | (high << np.uint8(4))
    out -= 32.0
    grouped = out.reshape(-1, 16, 16)
    grouped *= scale[..., None]


def _mxfp4(blocks: Bytes, out: Floats) -> None:
    _write_mxfp4(_nibbles(blocks[:, 1:]).reshape(-1, 32), blocks[:, 0], out)


def _write_mxfp4(codes: Bytes, scales: Bytes, out: Floats) -> None:
    """Fill out: codes uint8 [B, 32], scales uint8 [B] -> out fp32 [B, 32], with the bits of ggml: zeros are
    positive, and a scale of 255 is 2^128.

    The numbers are doubled and the scales halved, so that every scale is a number of fp32.
    """
    magnitudes = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)  # of a code without its sign, doubled
    doubled = np.concatenate((magnitudes, 0.0 - magnitudes))  # 0 - 0 is positive
    halves = np.ldexp(np.ones(256), np.arange(256) - 128).astype(np.float32)
    np.multiply(doubled[codes], halves[scales][:, None], out=out)


_UNPACK: dict[str, Callable[[Any, Any], None]] = {
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
