"""Tables of cosines and sines for rotary position embeddings, in fp32 as transformers computes
them.

An entry depends on its position alone: tables are computed in chunks of one fixed shape. So a
shorter table is a prefix of a longer one, bit for bit.
"""

import torch
from torch import Tensor

# Positions per chunk of a table. Too few for torch to use several threads, so the vectorised loop has its tail
# at the same place.
ROPE_CHUNK = 128


def rope_tables(inv_freq: Tensor, attention_scaling: float | Tensor, max_len: int) -> tuple[Tensor, Tensor]:
    """inv_freq fp32 [D / 2] -> cos, sin fp32 [max_len, D / 2], scaled by `attention_scaling`, one factor
    or fp32 [D / 2]."""
    chunks = [rope_chunk(inv_freq, attention_scaling, start) for start in range(0, max_len, ROPE_CHUNK)]
    cos, sin = (torch.cat(each)[:max_len].contiguous() for each in zip(*chunks, strict=True))
    return cos, sin


def rope_chunk(inv_freq: Tensor, attention_scaling: float | Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Positions start to start + ROPE_CHUNK of the tables; `start` is a multiple of ROPE_CHUNK."""
    freq = inv_freq.to(torch.float32)
    positions = torch.arange(start, start + ROPE_CHUNK, dtype=torch.float32, device=freq.device)
    angles = positions[:, None] * freq[None, :]  # [chunk, D / 2]
    return angles.cos() * attention_scaling, angles.sin() * attention_scaling
