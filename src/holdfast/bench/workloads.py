"""Request lengths of benchmarks."""

import math
import random


def draw_lengths(
    rng: random.Random, count: int, median: float, sigma: float, low: int, high: int
) -> list[int]:
    """Log-normal lengths in tokens, clipped to low .. high. sigma is that of the logarithm."""
    return [min(high, max(low, round(median * math.exp(rng.gauss(0.0, sigma))))) for _ in range(count)]
