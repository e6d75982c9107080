"""MXFP4: blocks of 32 numbers of 4 bits (E2M1), and one power of two (E8M0) for each block."""

import torch
from torch import Tensor

BLOCK_LEN = 32


def dequantize_blocks(packed: Tensor, scales: Tensor) -> Tensor:
    """Blocks as safetensors hold them: packed uint8 [rows, blocks, 16], the even numbers of a block in
    the low halves of its bytes, and scales uint8 [rows, blocks] -> fp32 [rows, 32 * blocks]."""
    codes = torch.stack((packed & 0x0F, packed >> 4), -1)  # [rows, blocks, 16, 2]
    out = torch.empty(scales.numel(), BLOCK_LEN)
    write_values(codes.view(-1, BLOCK_LEN), scales.reshape(-1), out)
    return out.view(packed.shape[0], -1)


def write_values(codes: Tensor, scales: Tensor, out: Tensor) -> None:
    """codes uint8 [B, 32], scales uint8 [B] -> out fp32 [B, 32], with the bits of ggml: zeros are
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
