"""Batch sizes, in tokens: those that passes are padded to, which are those that certification tests.

On a GPU each has a captured CUDA graph:

    1 2 4 8 16 .. (steps of 8) .. 256 .. (steps of 16) .. 512 .. (steps of an eighth to a quarter) .. max_tokens

The LM head pads its tokens to the same sizes.
"""

from bisect import bisect_left

_DENSE = 512  # up to this size steps are small
MAX_SHORT_TILE_TOKENS = 512  # graphs of up to this many tokens use short attention tiles only
MAX_HEAD_TOKENS = 512  # tokens per call of the LM head


def cpu_batch_sizes(max_tokens: int) -> tuple[int, ...]:
    """Return all sizes up to 8, then steps of a third, from 64 of an eighth, up to max_tokens: on a CPU
    padding costs as much as real tokens."""
    steps = [*range(1, 9), *range(12, 33, 4), *range(40, 129, 8), *range(144, 257, 16), *range(288, 513, 32)]
    steps += range(576, max(max_tokens, 576) + 1, 64)
    return (*(size for size in steps if size < max_tokens), max_tokens)


def padded_batch_sizes(max_tokens: int) -> tuple[int, ...]:
    """On a GPU: the sizes that passes are padded to, each with a CUDA graph."""
    small = (1, 2, 4, *range(8, 257, 8), *range(272, _DENSE + 1, 16))
    large = (*range(576, 769, 64), *range(896, 1281, 128), *range(1536, 2049, 256), *range(2560, 4097, 512))
    largest = range(5120, max_tokens + 1, 1024)
    return _up_to(max_tokens, (*small, *large, *largest))


def padded_head_size(num_tokens: int) -> int:
    """Return the number of rows that a call of the LM head with this many tokens computes on a GPU."""
    return _HEAD_SIZES[bisect_left(_HEAD_SIZES, num_tokens)] if num_tokens <= MAX_HEAD_TOKENS else num_tokens


def _up_to(max_tokens: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes up to max_tokens, which is added if it is more than the dense ones."""
    found = [size for size in sizes if size <= max_tokens]
    return (*found, max_tokens) if max_tokens > _DENSE and max_tokens not in found else tuple(found)


_HEAD_SIZES = padded_batch_sizes(MAX_HEAD_TOKENS)
