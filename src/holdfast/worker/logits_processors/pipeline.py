"""The logits processors of a request, in order: penalties, logit bias, token masks.

Each token's logits are changed by its own request's settings and tokens alone. The order is that of
`SamplingParams`.
"""

from collections.abc import Sequence

from torch import Tensor

from holdfast.worker.logits_processors.penalties import apply_penalties
from holdfast.worker.logits_processors.token_lists import token_lists_of
from holdfast.worker.logits_processors.token_masks import apply_token_masks
from holdfast.worker.logits_slices import LogitsSlice, PlacedSlices


def apply_logits_processors(logits: Tensor, slices: Sequence[LogitsSlice]) -> list[int]:
    """Change the logits, fp32 [tokens, vocab], in place. Returns the rows in which tokens may
    have been masked."""
    placed: list[tuple[int, LogitsSlice]] = []
    at = 0
    for one in slices:
        if has_logits_processors(one):
            placed.append((at, one))
        at += one.num_tokens
    apply_penalties(logits, placed)
    _apply_logit_bias(logits, placed)
    return apply_token_masks(logits, placed)


def has_logits_processors(one: LogitsSlice) -> bool:
    return bool(one.masks) or one.span.sampling.changes_logits


def _apply_logit_bias(logits: Tensor, placed: PlacedSlices) -> None:
    for at, one in placed:
        params = one.span.sampling.params
        if params.biases:
            lists = token_lists_of(params, logits.shape[1], logits.device)
            logits[at : at + one.num_tokens, lists.bias_ids] += lists.biases
