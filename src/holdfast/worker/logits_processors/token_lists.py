"""The token lists of a request as tensors: logit bias, allowed and bad token ids.

A list can be as long as the vocabulary, too long to convert for every token. So the tensors are
made once for each `SamplingParams` object and dropped with it. Ids outside the vocabulary are
ignored.
"""

import weakref
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.worker.transfer import send_array


@dataclass(frozen=True)
class TokenLists:
    """Biases by token id, and an upper limit of each logit: -inf for tokens that are not
    allowed, inf for all others."""

    bias_ids: NDArray[np.int64]  # [biased], on the host
    biases: NDArray[np.float32]  # [biased], on the host
    bad_ids: NDArray[np.int64]  # on the host
    limit: Tensor  # fp32 [vocab], or [0] if all are allowed
    allowed_bits: int  # the allowed tokens as one number, bit i for token i; -1 if all are


# By identity: comparing two SamplingParams would read their lists. An id may be reused after its
# object has died.
_cache: dict[tuple[int, int, torch.device], tuple[weakref.ref[SamplingParams], TokenLists]] = {}


def token_lists_of(params: SamplingParams, vocab_size: int, device: torch.device) -> TokenLists:
    key = (id(params), vocab_size, device)
    known = _cache.get(key)
    if known is not None and known[0]() is params:
        return known[1]
    made = _make(params, vocab_size, device)
    _cache[key] = (weakref.ref(params, lambda _: _cache.pop(key, None)), made)
    return made


def _make(params: SamplingParams, vocab_size: int, device: torch.device) -> TokenLists:
    biases = [(token_id, bias) for token_id, bias in params.biases if token_id < vocab_size]
    limit = _limit(params, vocab_size)
    return TokenLists(
        bias_ids=np.array([token_id for token_id, _ in biases], np.int64),
        biases=np.array([bias for _, bias in biases], np.float32),
        bad_ids=_inside(params.bad_ids, vocab_size).numpy(),
        limit=send_array(limit.numpy(), device),
        allowed_bits=_bits(limit) if len(limit) else -1,
    )


def _bits(limit: Tensor) -> int:
    return int.from_bytes(np.packbits((limit > 0).numpy(), bitorder="little").tobytes(), "little")


def _limit(params: SamplingParams, vocab_size: int) -> Tensor:
    if params.allowed_ids is None and not params.bad_ids:
        return torch.empty(0)
    limit = torch.full((vocab_size,), torch.inf)
    if params.allowed_ids is not None:
        limit.fill_(-torch.inf)
        limit[_inside(params.allowed_ids, vocab_size)] = torch.inf
    limit[_inside(params.bad_ids, vocab_size)] = -torch.inf
    return limit


def _inside(token_ids: tuple[int, ...], vocab_size: int) -> Tensor:
    ids = torch.tensor(token_ids, dtype=torch.int64)
    return ids[ids < vocab_size]
