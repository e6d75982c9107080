"""The last layer of a large pass runs only for the tokens whose logits are needed.

In every layer later tokens read a token's keys and values. After the last layer only the head
reads, and only the tokens whose logits are needed: of a prompt chunk none, or its last. So a large
pass ends before its last layer. Tokens that are needed only as context write K and V there and skip
the rest of the layer. The others become a batch of their own, with one span per token:

    tokens of the pass    0 1 2 3 4 5 | 6 | 7 8 9     logits needed: 5, 6, 9
    tokens that continue            0   1       2     at their positions, with their own pages

Their number is not a certified batch size. If the pass is canonical, they are computed in canonical
form, which costs little for so few tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.models.decoder import Decoder
from holdfast.numerics.forward_batch import KVLayer
from holdfast.worker.input_batch import DeviceBatch, InputBatch, Ints, send_batch

_MIN_RATIO = 4  # of the pass's tokens to the tokens that continue, padded to the reference's size
_WARM_UP_SIZES = (1, 512)  # attention has another kernel for few tokens than for many


class LastLayer:
    """Which passes end before the last layer, and how they are completed."""

    def __init__(self, decoder: Decoder, layers: Sequence[KVLayer], *, needs_all_tokens: bool) -> None:
        """needs_all_tokens: the output of the last layer is read for all tokens, so every pass
        runs it whole."""
        self._decoder = decoder
        self._layers = layers
        self._needs_all_tokens = needs_all_tokens
        self._reference_tokens = decoder.backend.recipe.rows

    def is_separate(self, num_tokens: int, num_logits: int = 1) -> bool:
        """Whether a pass of this size with so many logits ends before the last layer."""
        num_slabs = -(-num_logits // self._reference_tokens)
        is_large = num_tokens >= _MIN_RATIO * self._reference_tokens * num_slabs
        return is_large and not self._needs_all_tokens

    def run(
        self,
        batch: InputBatch,
        sent: DeviceBatch,
        body: tuple[Tensor, Tensor],
        *,
        canonical: bool,
        exact: bool,
    ) -> Tensor:
        """Complete a pass from the output of `Decoder.forward_body`: [logits_indices, hidden].

        exact: the bits of this pass must be canonical. A graph is captured without knowing how many
        tokens need logits; if they are many, the last layer runs for all tokens.
        """
        residual, x = body
        if not len(batch.logits_indices):
            return x[:0]
        if not self.is_separate(len(x), len(batch.logits_indices)):
            hidden = self._decoder.forward_last_layer(
                residual, x, sent.forward, self._layers, canonical=canonical
            )
            return hidden[sent.logits_indices]
        few = send_batch(logits_batch(batch), len(batch.logits_indices), x.device).forward
        residual, x = residual[sent.logits_indices], x[sent.logits_indices]
        return self._decoder.forward_last_layer(residual, x, few, self._layers, canonical=exact)

    def warm_up(self) -> None:
        """Run with few and with many tokens, in both forms, so that no request waits for kernels
        to compile. Nothing is written."""
        backend, width = self._decoder.backend, self._decoder.config.hidden_size
        for count in _WARM_UP_SIZES:
            zeros = np.zeros(count, np.int64)
            batch = _one_token_spans(zeros, zeros - 1, np.zeros((count, 1), np.int32), tiled=True)
            forward = send_batch(batch, count, backend.device).forward
            for canonical in (False, True):
                residual, x = (
                    torch.zeros(count, width, dtype=self._decoder.dtype, device=backend.device)
                    for _ in range(2)
                )
                self._decoder.forward_last_layer(residual, x, forward, self._layers, canonical=canonical)


def logits_batch(batch: InputBatch) -> InputBatch:
    """The tokens that need logits as a batch, one span each."""
    indices = batch.logits_indices
    span_of = np.searchsorted(batch.span_starts, indices, side="right") - 1
    return _one_token_spans(
        batch.positions[indices],
        batch.slots[indices],
        batch.page_table[span_of],
        tiled=len(batch.tiles) > 0,
    )


def _one_token_spans(
    positions: Ints, slots: Ints, page_table: NDArray[np.int32], *, tiled: bool
) -> InputBatch:
    """Spans of one token each, in tiles of one token."""
    count, width = page_table.shape
    each, empty = np.arange(count), np.empty(0, np.int64)
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
        num_pooled=0,
        logits_indices=empty,
        ring_read_indices=empty,
        ring_read_slots=empty,
        ring_write_indices=empty,
        ring_write_slots=empty,
    )
