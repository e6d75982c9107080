"""The logits processors of a request, in order: penalties, logit bias, token masks.

Each token's logits are changed by its own request's settings and tokens alone. The order is that of
`SamplingParams`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.worker.logits import LogitsSlice, PlacedSlices
from holdfast.worker.logits_processors.device_history import (
    DeviceTokens,
    is_on_device,
    mask_bad_words_on_device,
    penalise_on_device,
)
from holdfast.worker.logits_processors.penalties import apply_penalties
from holdfast.worker.logits_processors.token_masks import apply_token_masks, token_lists_of
from holdfast.worker.transfer import send_array


def apply_logits_processors(
    logits: Tensor, slices: Sequence[LogitsSlice], tokens: DeviceTokens | None = None
) -> None:
    """Change the logits, fp32 [tokens, vocab], in place. tokens: for spans without a history that they
    need."""
    placed: list[tuple[int, LogitsSlice]] = []
    at = 0
    for one in slices:
        if has_logits_processors(one):
            placed.append((at, one))
        at += one.num_tokens
    unread = [(at, one) for at, one in placed if is_on_device(one)]
    apply_penalties(logits, placed)
    if unread:
        assert tokens is not None, "penalties and bad words need all tokens before the span"
        penalise_on_device(logits, unread, tokens)
    _apply_logit_bias(logits, placed)
    apply_token_masks(logits, placed)
    if unread and tokens is not None:
        mask_bad_words_on_device(logits, unread, tokens)


def has_logits_processors(one: LogitsSlice) -> bool:
    return bool(one.masks) or one.span.sampling.changes_logits


def _apply_logit_bias(logits: Tensor, placed: PlacedSlices) -> None:
    vocab_size = logits.shape[1]
    places: list[NDArray[np.int64]] = []
    biases: list[NDArray[np.float32]] = []
    for at, one in placed:
        params = one.span.sampling.params
        if params.biases:
            lists = token_lists_of(params, vocab_size, logits.device)
            for row in range(at, at + one.num_tokens):
                places.append(row * vocab_size + lists.bias_ids)
                biases.append(lists.biases)
    if not places:
        return
    where = send_array(np.concatenate(places), logits.device)  # no place occurs twice
    values = logits.view(-1).index_select(0, where) + send_array(np.concatenate(biases), logits.device)
    logits.view(-1).index_copy_(0, where, values)
