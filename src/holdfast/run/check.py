"""A certificate put to the test: rows that certified passes gave, computed again at the reference's shape.

The rows write into scratch pages, so the sequence goes on undisturbed. Their keys and values in every layer, and the
checksums of their logits, must have the bits of the first time. Nothing is tolerated. Where they differ is worked out on the
device and read later.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.arithmetic.rows import KVLayer
from holdfast.core.plan import Pass, Span
from holdfast.models.decoder import Decoder
from holdfast.run.batch import Sent
from holdfast.run.checksum import checksums
from holdfast.run.parts import max_slice_rows
from holdfast.run.transfer import Returns, send_array

_AS_INTEGER = {2: torch.int16, 4: torch.int32}


def start_check(
    decoder: Decoder, layers: Sequence[KVLayer], one: Pass, sent: Sent, up: Returns
) -> Callable[[], str | None]:
    """Enqueue a check, whose rows were sent; what is returned reads the first place where the bits differ, or None."""
    (span,) = one.spans
    assert len(one.logit_bits) == span.num_sampled
    device = decoder.arithmetic.device
    slots = _Slots(span, one.originals, decoder.arithmetic.page_size, device)
    for layer in layers:
        slots.prepare(layer)
    hidden = decoder.forward(sent.rows, layers, sent.wanted, canonical=True)
    differs = up.take(torch.stack([slots.differences(layer) for layer in layers]))  # bool [layers, 2, rows]
    found = [
        up.take(checksums(decoder.logits(some, canonical=True)))
        for some in (torch.split(hidden, max_slice_rows(device)) if len(hidden) else ())
    ]

    def read() -> str | None:
        for layer, kind, row in differs.nonzero()[:1].tolist():
            return f"{('keys', 'values')[kind]} of layer {layer} at position {span.start + row}"
        bits = [number for some in found for number in some.tolist()]
        for row, (now, expected) in enumerate(zip(bits, one.logit_bits, strict=True), span.sample_from):
            if now != expected:
                return f"logits at position {span.start + row}"
        return None

    return read


class _Slots:
    """Where a span's keys and values were written first, and where they are written again."""

    def __init__(self, span: Span, originals: tuple[int, ...], page_size: int, device: torch.device) -> None:
        before = len(span.pages) - len(originals)
        assert before * page_size <= span.start < span.stop <= len(span.pages) * page_size
        positions = np.arange(span.start, span.stop)
        pages = positions // page_size - before
        scratch, first = np.array(span.pages[before:]), np.array(originals)
        self._scratch_pages, self._original_pages = send_array(np.stack((scratch, first)), device)  # [pages]
        numbers = np.stack((positions % page_size, scratch[pages], first[pages]))
        self._offsets, self._scratch, self._originals = send_array(numbers, device)  # [rows]

    def prepare(self, layer: KVLayer) -> None:
        """Whole pages are copied for the slots before the first row. The rows' own slots get one wrong bit in every
        number, so that one the pass does not write cannot pass for written."""
        for tensor in (layer.keys, layer.values):
            tensor[self._scratch_pages] = tensor[self._original_pages]
        keys, values = _bits(layer.keys), _bits(layer.values)
        keys[self._scratch, :, :, self._offsets] ^= 1
        values[self._scratch, :, self._offsets] ^= 1

    def differences(self, layer: KVLayer) -> Tensor:
        """Which rows' keys and which rows' values differ, bool [2, rows]."""
        keys, values = _bits(layer.keys), _bits(layer.values)
        pairs = (  # each [rows, kv_heads, head_dim]
            (keys[self._scratch, :, :, self._offsets], keys[self._originals, :, :, self._offsets]),
            (values[self._scratch, :, self._offsets], values[self._originals, :, self._offsets]),
        )
        return torch.stack([(again != before).flatten(1).any(1) for again, before in pairs])


def _bits(tensor: Tensor) -> Tensor:
    """The same numbers as integers: -0 is not 0, and a NaN equals itself."""
    return tensor.view(_AS_INTEGER[tensor.dtype.itemsize])
