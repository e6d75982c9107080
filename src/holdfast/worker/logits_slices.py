"""Sampled tokens in batches of limited size, which limits the memory of the logits.

A batch may split a span: a sampled token does not depend on the tokens computed with it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from holdfast.core.step_plan import Span

Masks = tuple[bytes | None, ...]  # grammar masks of some tokens, as in `Grammar.masks`


def max_logits_tokens(device: torch.device) -> int:
    """How many tokens have logits at once: many on a GPU, to be worth the kernel launches, few
    on a CPU, to save memory."""
    return 512 if device.type == "cuda" else 64


class LogitsSlice(NamedTuple):
    """Tokens first .. stop - 1 of a span, all sampled. masks: one for each token if the span has
    a grammar, else empty."""

    span: Span
    first: int
    stop: int
    masks: Masks = ()

    @property
    def num_tokens(self) -> int:
        return self.stop - self.first

    @property
    def first_position(self) -> int:
        """The position of the first token that is sampled here: how many tokens precede it."""
        return self.span.start + self.first + 1


PlacedSlices = Sequence[tuple[int, LogitsSlice]]  # slices, each with its first row in the logits


def batch_slices(
    spans: Sequence[Span], masks: Sequence[Masks], max_tokens: int
) -> Iterator[list[LogitsSlice]]:
    """The sampled tokens in batches of at most max_tokens, in span order. masks: by span."""
    batch: list[LogitsSlice] = []
    room = max_tokens
    for span, span_masks in zip(spans, masks, strict=True):
        first, num_tokens = span.sample_from, len(span.token_ids)
        while first < num_tokens:
            stop = min(num_tokens, first + room)
            at = first - span.sample_from
            batch.append(LogitsSlice(span, first, stop, span_masks and span_masks[at : at + stop - first]))
            room -= stop - first
            first = stop
            if room == 0:
                yield batch
                batch, room = [], max_tokens
    if batch:
        yield batch
