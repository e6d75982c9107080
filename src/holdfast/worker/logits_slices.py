"""The sampled rows of a pass in slices, so that never more than a few rows of the vocabulary's width are in memory.

A slice may cut a span in two: a row's token does not depend on what is computed together with it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from holdfast.core.step_plan import Span

Masks = tuple[bytes | None, ...]  # what a grammar says of some rows, as in `Grammar.masks`


def max_slice_rows(device: torch.device) -> int:
    """Where a slice is made of many kernels it should be worth them; where memory is dear, small."""
    return 512 if device.type == "cuda" else 64


class LogitsSlice(NamedTuple):
    """The sampled rows first .. stop - 1 of a span. masks has one entry a row if the span has a grammar, else none."""

    span: Span
    first: int
    stop: int
    masks: Masks = ()

    @property
    def num_rows(self) -> int:
        return self.stop - self.first

    @property
    def first_end(self) -> int:
        """How many tokens stand before the first row's token, which is the position of that token."""
        return self.span.start + self.first + 1


Placed = Sequence[tuple[int, LogitsSlice]]  # parts, each with its first row in the slice


def slice_parts(spans: Sequence[Span], masks: Sequence[Masks], most: int) -> Iterator[list[LogitsSlice]]:
    """Slices of at most so many rows, in order of spans. masks are those of each span's sampled rows."""
    parts: list[LogitsSlice] = []
    room = most
    for span, span_masks in zip(spans, masks, strict=True):
        first, num_rows = span.sample_from, len(span.token_ids)
        while first < num_rows:
            stop = min(num_rows, first + room)
            at = first - span.sample_from
            parts.append(LogitsSlice(span, first, stop, span_masks and span_masks[at : at + stop - first]))
            room -= stop - first
            first = stop
            if room == 0:
                yield parts
                parts, room = [], most
    if parts:
        yield parts
