"""Tables of cosines and sines for rotary position embeddings, in fp32.

An angle is position * inv_freq, rounded to fp32 as transformers rounds it. Its cosine and sine are computed
by functions of our own: torch chooses those of a library by the host's CPU. An entry depends on its position
alone, so a shorter table is a prefix of a longer one, bit for bit.
"""

import numpy as np

from holdfast.numerics.elementary import Floats, cos_sin_fp32

ROPE_CHUNK = 128  # positions that are computed at once: their intermediate results stay in the cache


def rope_tables(inv_freq: Floats, attention_scaling: float | Floats, max_len: int) -> tuple[Floats, Floats]:
    """inv_freq fp32 [D / 2] -> cos, sin fp32 [max_len, D / 2], scaled by `attention_scaling`, one factor
    or fp32 [D / 2]."""
    cos, sin = (np.empty((max_len, len(inv_freq)), np.float32) for _ in range(2))
    for start in range(0, max_len, ROPE_CHUNK):
        end = min(start + ROPE_CHUNK, max_len)
        cos[start:end], sin[start:end] = rope_chunk(inv_freq, attention_scaling, start, end - start)
    return cos, sin


def rope_chunk(
    inv_freq: Floats, attention_scaling: float | Floats, start: int, count: int = ROPE_CHUNK
) -> tuple[Floats, Floats]:
    """Return positions start to start + count of the tables, fp32 [count, D / 2]."""
    angles = np.arange(start, start + count, dtype=np.float32)[:, None] * inv_freq  # [count, D / 2]
    factor = np.asarray(attention_scaling, dtype=np.float32)
    cos, sin = cos_sin_fp32(angles)
    return cos * factor, sin * factor
