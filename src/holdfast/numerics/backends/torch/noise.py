"""The noise of the sampler, by numpy: the function that `backends/c/sampling.c` defines, bit for bit."""

import numpy as np
from numpy.typing import NDArray

from holdfast.numerics.elementary import Floats, log_fp32

Ids = NDArray[np.int64]

SPLITMIX_GAMMA = 0x9E3779B97F4A7C15
_STREAM = 0xD1B54A32D192ED03
_MASK = (1 << 64) - 1


def mix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def noise_bits(seed: int, position: int, ids: Ids) -> NDArray[np.uint64]:
    """32 random bits for each id, a function of seed, position and id only."""
    halves = np.array(
        [(seed + SPLITMIX_GAMMA) & _MASK, (position * SPLITMIX_GAMMA + _STREAM) & _MASK], dtype=np.uint64
    )
    mixed = mix64(halves)
    key = mix64(mixed[:1] ^ mixed[1:])
    return mix64(key + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(SPLITMIX_GAMMA)) >> np.uint64(32)


def gumbel(hashes: NDArray[np.uint64]) -> Floats:
    """-log(-log(1 - w)) for w uniform in (0, 1)."""
    w = (hashes.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    w = np.minimum(w, np.float32(1.0 - 2.0**-24))
    one = np.float32(1.0)
    y = one - w
    is_one = y == one
    # log(1 - w): w / (1 - y) corrects the rounding error of y = 1 - w
    divisor = np.where(is_one, one, one - y)
    e = np.where(is_one, w, (np.float32(0.0) - log_fp32(y)) * (w / divisor))
    gumbel: Floats = np.float32(0.0) - log_fp32(e)
    return gumbel


def noise(seed: int, position: int, ids: Ids) -> Floats:
    """Gumbel noise of token ids: a function of seed, position and id only."""
    return gumbel(noise_bits(seed, position, ids))
