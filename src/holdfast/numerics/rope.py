"""Tables of cosines and sines for rotary position embeddings, in fp32 as transformers computes
them.

An entry depends on its position alone: tables are computed in chunks of one fixed shape. So a
shorter table is a prefix of a longer one, bit for bit.
"""

import torch
from torch import Tensor

# Positions per chunk. Too few for torch to use several threads, so the vectorised loop has its tail
# at the same place.
_CHUNK = 128


def rope_tables(inv_freq: Tensor, attention_scaling: float, max_len: int) -> tuple[Tensor, Tensor]:
    """inv_freq fp32 [D / 2] -> cos, sin fp32 [max_len, D / 2], scaled by `attention_scaling`."""
    freq = inv_freq.to(torch.float32)
    cos, sin = [], []
    for start in range(0, max_len, _CHUNK):
        positions = torch.arange(start, start + _CHUNK, dtype=torch.float32, device=freq.device)
        angles = positions[:, None] * freq[None, :]  # [chunk, D / 2]
        cos.append(angles.cos() * attention_scaling)
        sin.append(angles.sin() * attention_scaling)
    return torch.cat(cos)[:max_len].contiguous(), torch.cat(sin)[:max_len].contiguous()
