"""Small recurrent layers, and the metadata of their passes."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch
from holdfast.numerics.recurrence import GatedDelta, Recurrence, ShortConv, StateSpace

KINDS = ("gated_delta", "ssd", "short_conv")
LOG_LEN = 32


def make_weights(kind: str, seed: int = 0) -> Recurrence:
    """Return the weights of a small layer, whose heads share keys or groups."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 0.5) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    if kind == "gated_delta":
        width = 2 * 2 * 8 + 4 * 16
        return GatedDelta(normal(4, width), -normal(4).exp(), normal(4), 2, 4, 8, 16)
    if kind == "ssd":
        width = 4 * 8 + 2 * 2 * 16
        return StateSpace(
            *(normal(4, width), normal(width), -normal(4).exp(), normal(4), normal(4)),
            heads=4,
            head_dim=8,
            groups=2,
            state_size=16,
            dt_min=0.01,
            dt_max=2.0,
        )
    return ShortConv(normal(3, 24), normal(24))


def recurrent_batch(spans: Sequence[tuple[int, int, int, int]], lengths: Sequence[int]) -> ForwardBatch:
    """Return a pass of spans (slot, start, checkpoint, store) and their lengths, the part that recurrent layers
    read."""
    none = torch.zeros(sum(lengths), dtype=torch.int64)
    starts = [0, *accumulate(lengths)]
    table = torch.zeros((len(spans), 1), dtype=torch.int32)
    numbers = [(*span, *rows) for span, rows in zip(spans, pairwise(starts), strict=True)]
    num_replayed = sum(start - checkpoint for _, start, checkpoint, _ in spans)
    recurrent = RecurrentBatch(torch.tensor(numbers, dtype=torch.int32), num_replayed)
    return ForwardBatch(none, none, none, torch.tensor(starts, dtype=torch.int32), table, recurrent=recurrent)
