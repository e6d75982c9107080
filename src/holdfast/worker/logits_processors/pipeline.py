"""What a request's settings do to logits before a token is chosen: penalties, bias, then what is not allowed is left out.

Each row is changed by its own settings and tokens alone. The order is that of `SamplingParams`.
"""

from collections.abc import Sequence

from torch import Tensor

from holdfast.worker.logits_processors.penalties import penalise
from holdfast.worker.logits_processors.token_lists import listed
from holdfast.worker.logits_processors.token_masks import leave_out
from holdfast.worker.logits_slices import LogitsSlice, Placed


def adjust(logits: Tensor, parts: Sequence[LogitsSlice]) -> list[int]:
    """Changes the logits, fp32 [rows, vocab], in place; returns the rows of which something may have been left out."""
    placed: list[tuple[int, LogitsSlice]] = []
    at = 0
    for part in parts:
        if is_adjusted(part):
            placed.append((at, part))
        at += part.num_rows
    penalise(logits, placed)
    _add_biases(logits, placed)
    return leave_out(logits, placed)


def is_adjusted(part: LogitsSlice) -> bool:
    """Whether the part's logits change at all."""
    return bool(part.masks) or part.span.sampling.changes_logits


def _add_biases(logits: Tensor, placed: Placed) -> None:
    for at, part in placed:
        params = part.span.sampling.params
        if params.biases:
            of = listed(params, logits.shape[1], logits.device)
            logits[at : at + part.num_rows, of.bias_ids] += of.biases
