"""The last layer of a pass, for the rows somebody looks at.

Other rows look back at a row's keys and values, in every layer. Behind the last one only the head looks, at the wanted
rows: of a chunk of a prompt none, or its last. So a long pass ends before its last layer, of which it writes the keys and
values alone, and the wanted rows go on as a pass of their own, each a span:

    rows of the pass   0 1 2 3 4 5 | 6 | 7 8 9        wanted: 5, 6, 9
    rows that go on              0   1       2        at their positions, with the pages of their sequences

There may be any number of them, which is no total that was certified. Where bits count they are computed in the reference's
form, whatever the pass: that costs little for so few.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.models.decoder import Decoder
from holdfast.numerics.forward_batch import KVLayer
from holdfast.worker.input_batch import DeviceBatch, InputBatch, Ints, send_batch

_LONG = 4  # so many times the rows that go on, filled up to the reference's: then they are worth a pass of their own
_WARM = (1, 512)  # rows: so few share their splits among programs, so many do not


class LastLayer:
    """Which passes end before it, and how what they left goes on."""

    def __init__(self, decoder: Decoder, layers: Sequence[KVLayer], *, all_seen: bool) -> None:
        """all_seen: somebody looks at all rows behind it, so no pass ends before."""
        self._decoder = decoder
        self._layers = layers
        self._all_seen = all_seen
        self._slab = decoder.backend.recipe.rows

    def is_apart(self, num_rows: int, num_wanted: int = 1) -> bool:
        """Whether a pass of so many rows ends before it, if so many of them are wanted."""
        slabs = -(-num_wanted // self._slab)
        return num_rows >= _LONG * self._slab * slabs and not self._all_seen

    def run(
        self,
        batch: InputBatch,
        sent: DeviceBatch,
        left: tuple[Tensor, Tensor],
        *,
        canonical: bool,
        exact: bool,
    ) -> Tensor:
        """What `Decoder.forward_body` left, to the end: the wanted rows as the head takes them, [wanted, hidden]. What was
        captured without knowing how many they are is run to the end with all its rows where they are many."""
        residual, x = left
        if not len(batch.wanted):
            return x[:0]
        if not self.is_apart(len(x), len(batch.wanted)):
            return self._decoder.forward_last_layer(
                residual, x, sent.rows, self._layers, canonical=canonical
            )[sent.wanted]
        few = send_batch(wanted_of(batch), len(batch.wanted), x.device).rows
        residual, x = residual[sent.wanted], x[sent.wanted]
        return self._decoder.forward_last_layer(residual, x, few, self._layers, canonical=exact)

    def warm(self) -> None:
        """Run it for nothing, so that no kernel of it is compiled while somebody waits: for few rows and for many, which
        attend otherwise, in both forms. Nothing is written."""
        backend, width = self._decoder.backend, self._decoder.config.hidden_size
        for count in _WARM:
            zeros = np.zeros(count, np.int64)
            batch = _singles(zeros, zeros - 1, np.zeros((count, 1), np.int32), tiled=True)
            rows = send_batch(batch, count, backend.device).rows
            for canonical in (False, True):
                residual, x = (
                    torch.zeros(count, width, dtype=self._decoder.dtype, device=backend.device)
                    for _ in range(2)
                )
                self._decoder.forward_last_layer(residual, x, rows, self._layers, canonical=canonical)


def wanted_of(batch: InputBatch) -> InputBatch:
    """The wanted rows as a batch, each a span of its own; nothing is wanted of them but that they are computed."""
    which = batch.wanted
    owners = np.searchsorted(batch.span_starts, which, side="right") - 1
    return _singles(
        batch.positions[which], batch.slots[which], batch.page_table[owners], tiled=len(batch.tiles) > 0
    )


def _singles(positions: Ints, slots: Ints, page_table: NDArray[np.int32], *, tiled: bool) -> InputBatch:
    """Rows that are a span each, with the pages of their sequences, and in tiles of one."""
    count, width = page_table.shape
    each, nothing = np.arange(count), np.empty(0, np.int64)
    tiles = np.stack((each, np.ones_like(each), each * width), 1).astype(np.int32)
    return InputBatch(
        token_ids=np.zeros(count, np.int64),
        positions=positions,
        slots=slots,
        tiles=tiles if tiled else tiles[:0],
        page_table=page_table,
        span_starts=np.arange(count + 1, dtype=np.int32),
        num_short_tiles=count if tiled else 0,
        num_request_indices=0,
        num_scored=0,
        wanted=nothing,
        unknown=nothing,
        unknown_from=nothing,
        told=nothing,
        told_to=nothing,
    )
