"""What a request's settings say of single tokens, as tensors: made once for each `SamplingParams`, forgotten with it.

A list can have as many ids as the vocabulary, too many to be read again for every row. Ids outside the vocabulary
say nothing.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.params import SamplingParams


@dataclass(frozen=True)
class Listed:
    """Biases by token id, and the tokens that may never be chosen (None: all may)."""

    bias_ids: Tensor  # int64 [biased]
    biases: Tensor  # fp32 [biased]
    forbidden: Tensor | None  # bool [vocab]


# By identity: comparing two settings would read their lists. A dead one's place may be taken by another of the same id.
_made: dict[tuple[int, int, torch.device], tuple[weakref.ref[SamplingParams], Listed]] = {}


def listed(params: SamplingParams, vocab_size: int, device: torch.device) -> Listed:
    key = (id(params), vocab_size, device)
    known = _made.get(key)
    if known is not None and known[0]() is params:
        return known[1]
    made = _make(params, vocab_size, device)
    _made[key] = (weakref.ref(params, lambda _: _made.pop(key, None)), made)
    return made


def _make(params: SamplingParams, vocab_size: int, device: torch.device) -> Listed:
    biases = [(token_id, bias) for token_id, bias in params.biases if token_id < vocab_size]
    forbidden: Tensor | None = None
    if params.allowed_ids is not None:
        forbidden = torch.ones(vocab_size, dtype=torch.bool)
        forbidden[_inside(params.allowed_ids, vocab_size)] = False
    if params.bad_ids:
        forbidden = torch.zeros(vocab_size, dtype=torch.bool) if forbidden is None else forbidden
        forbidden[_inside(params.bad_ids, vocab_size)] = True
    return Listed(
        bias_ids=torch.tensor([token_id for token_id, _ in biases], dtype=torch.int64, device=device),
        biases=torch.tensor([bias for _, bias in biases], dtype=torch.float32, device=device),
        forbidden=None if forbidden is None else forbidden.to(device),
    )


def _inside(token_ids: tuple[int, ...], vocab_size: int) -> Tensor:
    ids = torch.tensor(token_ids, dtype=torch.int64)
    return ids[ids < vocab_size]
