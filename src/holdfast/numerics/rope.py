"""Tables of cosines and sines for rotary position embeddings, in fp32.

An angle is position * inv_freq, rounded to fp32 as transformers rounds it. Its cosine and sine are computed
by functions of our own: torch chooses those of a library by the host's CPU. An entry depends on its position
alone, so a shorter table is a prefix of a longer one, bit for bit.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.numerics.elementary import cos_sin_fp32

ROPE_CHUNK = 128  # positions that are computed at once: their intermediate results stay in the cache


def rope_tables(inv_freq: Tensor, attention_scaling: float | Tensor, max_len: int) -> tuple[Tensor, Tensor]:
    """inv_freq fp32 [D / 2] -> cos, sin fp32 [max_len, D / 2], scaled by `attention_scaling`, one factor
    or fp32 [D / 2]."""
    cos, sin = (torch.empty(max_len, len(inv_freq), dtype=torch.float32) for _ in range(2))
    for start in range(0, max_len, ROPE_CHUNK):
        end = min(start + ROPE_CHUNK, max_len)
        cos[start:end], sin[start:end] = rope_chunk(inv_freq, attention_scaling, start, end - start)
    return cos, sin


def rope_chunk(
    inv_freq: Tensor, attention_scaling: float | Tensor, start: int, count: int = ROPE_CHUNK
) -> tuple[Tensor, Tensor]:
    """Return positions start to start + count of the tables, fp32 [count, D / 2]."""
    freq: NDArray[np.float32] = inv_freq.to(torch.float32).numpy()
    angles = np.arange(start, start + count, dtype=np.float32)[:, None] * freq  # [count, D / 2]
    factor = np.asarray(attention_scaling, dtype=np.float32)
    cos, sin = cos_sin_fp32(angles)
    return torch.from_numpy(cos * factor), torch.from_numpy(sin * factor)
