"""Small recurrent layers, and the metadata of their passes."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch
from holdfast.numerics.recurrence import GatedDelta, Recurrence, ShortConv, StateSpace

KINDS = ("gated_delta", "ssd", "short_conv")
LOG_LEN = 32


def make_weights(kind: str, seed: int = 0, *, is_odd: bool = False) -> Recurrence:
    """Return the weights of a small layer, whose heads share keys or groups. is_odd: with heads whose sizes are
    multiples of nothing."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 0.5) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    heads, groups = (6, 3) if is_odd else (4, 2)
    rows, columns = (20, 37) if is_odd else (8, 16)
    if kind == "gated_delta":
        width = 2 * groups * rows + heads * columns
        decay, bias = -normal(heads).exp(), normal(heads)
        return GatedDelta(normal(4, width), decay, bias, groups, heads, rows, columns)
    if kind == "ssd":
        width = heads * columns + 2 * groups * rows
        return StateSpace(
            *(normal(4, width), normal(width), -normal(heads).exp(), normal(heads), normal(heads)),
            heads=heads,
            head_dim=columns,
            groups=groups,
            state_size=rows,
            dt_min=0.01,
            dt_max=2.0,
        )
    return ShortConv(normal(3, 300 if is_odd else 24), normal(300 if is_odd else 24))


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
