"""A certificate put to the test: rows that certified passes gave, computed again at the reference's shape.

The rows write into scratch pages, so the sequence goes on undisturbed. Their keys and values in every layer, and the
checksums of their logits, must have the bits of the first time. Nothing is tolerated.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.arithmetic.rows import KVLayer
from holdfast.core.plan import Pass, Span
from holdfast.models.decoder import Decoder
from holdfast.run.batch import rows_of, sampled_rows
from holdfast.run.checksum import checksums
from holdfast.run.parts import MAX_SLICE_ROWS
from holdfast.run.store import PAGE_SIZE

_AS_INTEGER = {2: torch.int16, 4: torch.int32}


def find_mismatch(decoder: Decoder, layers: Sequence[KVLayer], one: Pass) -> str | None:
    """Run a check; the first place where the bits differ, or None."""
    (span,) = one.spans
    assert len(one.logit_bits) == span.num_sampled
    slots = _Slots(span, one.originals)
    for layer in layers:
        slots.prepare(layer)
    sampled = torch.tensor(sampled_rows(one.spans), dtype=torch.int64)
    hidden = decoder.forward(rows_of(one, PAGE_SIZE), layers, sampled, canonical=True)
    for index, layer in enumerate(layers):
        difference = slots.difference(layer)
        if difference is not None:
            name, row = difference
            return f"{name} of layer {index} at position {span.start + row}"
    found: list[int] = []
    for some in torch.split(hidden, MAX_SLICE_ROWS) if len(hidden) else ():
        found += checksums(decoder.logits(some, canonical=True))
    for row, (bits, expected) in enumerate(zip(found, one.logit_bits, strict=True), span.sample_from):
        if bits != expected:
            return f"logits at position {span.start + row}"
    return None


class _Slots:
    """Where a span's keys and values were written first, and where they are written again."""

    def __init__(self, span: Span, originals: tuple[int, ...]) -> None:
        before = len(span.pages) - len(originals)
        assert before * PAGE_SIZE <= span.start < span.stop <= len(span.pages) * PAGE_SIZE
        self._scratch_pages = torch.tensor(span.pages[before:])
        self._original_pages = torch.tensor(originals)
        positions = torch.arange(span.start, span.stop)
        self._offsets = positions % PAGE_SIZE  # [rows]
        pages = positions // PAGE_SIZE - before
        self._scratch, self._originals = self._scratch_pages[pages], self._original_pages[pages]  # [rows]

    def prepare(self, layer: KVLayer) -> None:
        """Whole pages are copied for the slots before the first row. The rows' own slots get one wrong bit in every
        number, so that one the pass does not write cannot pass for written."""
        for tensor in (layer.keys, layer.values):
            tensor[self._scratch_pages] = tensor[self._original_pages]
        keys, values = _bits(layer.keys), _bits(layer.values)
        keys[self._scratch, :, :, self._offsets] ^= 1
        values[self._scratch, :, self._offsets] ^= 1

    def difference(self, layer: KVLayer) -> tuple[str, int] | None:
        """What differs, keys or values, and in which row first."""
        keys, values = _bits(layer.keys), _bits(layer.values)
        pairs = (  # each [rows, kv_heads, head_dim]
            ("keys", keys[self._scratch, :, :, self._offsets], keys[self._originals, :, :, self._offsets]),
            ("values", values[self._scratch, :, self._offsets], values[self._originals, :, self._offsets]),
        )
        for name, again, before in pairs:
            differs = (again != before).flatten(1).any(1)  # [rows]
            if differs.any():
                return name, int(differs.nonzero()[0])
        return None


def _bits(tensor: Tensor) -> Tensor:
    """The same numbers as integers: -0 is not 0, and a NaN equals itself."""
    return tensor.view(_AS_INTEGER[tensor.dtype.itemsize])
