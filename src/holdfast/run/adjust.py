"""What a request's settings do to logits before a token is chosen: penalties, bias, then what is not allowed is left out.

Each row is changed by its own settings and tokens alone. The order is that of `SamplingParams`.
"""

from collections.abc import Sequence

from torch import Tensor

from holdfast.run.forbid import leave_out
from holdfast.run.listed import listed
from holdfast.run.parts import Part, Placed
from holdfast.run.penalties import penalise


def adjust(logits: Tensor, parts: Sequence[Part]) -> list[int]:
    """Changes the logits, fp32 [rows, vocab], in place; returns the rows of which something may have been left out."""
    placed: list[tuple[int, Part]] = []
    at = 0
    for part in parts:
        if is_adjusted(part):
            placed.append((at, part))
        at += part.num_rows
    penalise(logits, placed)
    _add_biases(logits, placed)
    return leave_out(logits, placed)


def is_adjusted(part: Part) -> bool:
    """Whether the part's logits change at all."""
    return bool(part.masks) or part.span.sampling.adjusts


def _add_biases(logits: Tensor, placed: Placed) -> None:
    for at, part in placed:
        params = part.span.sampling.params
        if params.biases:
            of = listed(params, logits.shape[1], logits.device)
            logits[at : at + part.num_rows, of.bias_ids] += of.biases
