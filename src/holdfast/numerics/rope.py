"""Tables of cosines and sines for rotary positions, computed in fp32 as transformers does.

A table entry depends on its position alone, so a longer table has the shorter one as its prefix, bit for
bit: rows are made in chunks of one fixed shape.
"""

import torch
from torch import Tensor

# Positions computed at once: fixed, and too few to be shared out to threads, so that no vectorised tail
# ever falls in another place.
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
