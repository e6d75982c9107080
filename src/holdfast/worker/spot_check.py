"""A certificate put to the test: rows that certified passes gave, computed again at the reference's shape.

The rows write into scratch pages, so the sequence goes on undisturbed. Their keys and values in every layer, the checksums of
their logits, and what is thought behind their chunks (`thought_check.py`) must have the bits of the first time. Nothing is
tolerated. Where they differ is worked out on the device and read later.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.step_plan import Pass
from holdfast.models.decoder import Decoder
from holdfast.worker.checksum import checksums
from holdfast.worker.kv_store import KVStore
from holdfast.worker.logits_slices import max_slice_rows
from holdfast.worker.thought_check import ThoughtCheck, bits_of
from holdfast.worker.thought_runner import ThoughtRunner
from holdfast.worker.transfer import HostCopies, send_array


class SpotCheck:
    """One check: where its rows' keys and values were written first, and where they are written again, in every layer."""

    def __init__(
        self, one: Pass, store: KVStore, page_size: int, thinker: ThoughtRunner | None = None
    ) -> None:
        (span,) = one.spans
        assert len(one.logits_checksums) == span.num_sampled
        before = len(span.pages) - len(one.original_pages)
        assert before * page_size <= span.start < span.stop <= len(span.pages) * page_size
        self._one, self._span, self._num_layers = one, span, len(store.layers)
        self._whole = store.whole
        self._thoughts = None if thinker is None else ThoughtCheck(one, thinker, page_size)
        positions = np.arange(span.start, span.stop)
        pages = positions // page_size - before
        scratch, first = np.array(span.pages[before:]), np.array(one.original_pages)
        layers = np.arange(self._num_layers)[:, None] * store.num_pages  # where each layer's pages begin
        device = self._whole.keys.device
        whole_pages = np.stack([(layers + each).reshape(-1) for each in (scratch, first)])
        self._scratch_pages, self._original_pages = send_array(whole_pages, device)  # [layers * pages]
        slots = [np.broadcast_to(positions % page_size, (self._num_layers, len(positions)))]
        slots += [layers + scratch[pages], layers + first[pages]]
        numbers = np.stack([each.reshape(-1) for each in slots])
        self._offsets, self._scratch, self._originals = send_array(numbers, device)  # [layers * rows]

    def prepare(self) -> None:
        """Whole pages are copied for the slots before the first row. The rows' own slots get one wrong bit in every
        number, so that one the pass does not write cannot pass for written."""
        for tensor in (self._whole.keys, self._whole.values):
            tensor[self._scratch_pages] = tensor[self._original_pages]
        if self._thoughts is not None:
            self._thoughts.prepare()
        keys, values = bits_of(self._whole.keys), bits_of(self._whole.values)
        keys[self._scratch, :, :, self._offsets] ^= 1
        values[self._scratch, :, self._offsets] ^= 1

    def compare(self, decoder: Decoder, hidden: Tensor, up: HostCopies) -> Callable[[], str | None]:
        """Behind the pass that wrote the rows again, hidden being its sampled ones. What is returned reads the first place
        where the bits differ, or None."""
        span = self._span
        thought = None if self._thoughts is None else self._thoughts.compare(up)
        differs = up.take(self._differences())  # bool [2, layers, rows]
        found = [
            up.take(checksums(decoder.logits(some, canonical=True)))
            for some in (torch.split(hidden, max_slice_rows(hidden.device)) if len(hidden) else ())
        ]

        def read() -> str | None:
            for layer, kind, row in differs.transpose(0, 1).nonzero()[:1].tolist():
                return f"{('keys', 'values')[kind]} of layer {layer} at position {span.start + row}"
            if thought is not None and (problem := thought()) is not None:
                return problem
            bits = [number for some in found for number in some.tolist()]
            for row, (now, then) in enumerate(
                zip(bits, self._one.logits_checksums, strict=True), span.sample_from
            ):
                if now != then:
                    return f"logits at position {span.start + row}"
            return None

        return read

    def _differences(self) -> Tensor:
        keys, values = bits_of(self._whole.keys), bits_of(self._whole.values)
        pairs = (  # each [layers * rows, kv_heads, head_dim]
            (keys[self._scratch, :, :, self._offsets], keys[self._originals, :, :, self._offsets]),
            (values[self._scratch, :, self._offsets], values[self._originals, :, self._offsets]),
        )
        differs = torch.stack([(again != before).flatten(1).any(1) for again, before in pairs])
        return differs.view(2, self._num_layers, -1)
