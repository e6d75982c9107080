"""Penalties compared with plain Python and with transformers, bit by bit."""

import dataclasses
import struct

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from holdfast.core.sampling_params import SamplingParams
from holdfast.worker.sampler import apply_logits_processors
from worker.sampler_spans import VOCAB, slices_of, span

TOKENS = [3, 7, 7, 1, 9, 3, 3, 120, 9, 9, 50]  # the prompt is the first four
PENALTIES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"frequency_penalty": 0.37},
    {"presence_penalty": -1.1},
    {"repetition_penalty": 1.17, "frequency_penalty": -0.61, "presence_penalty": 0.83},
]


@pytest.fixture
def logits() -> Tensor:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(4)) * 3
    logits[:, 9] = torch.tensor([0.0, -0.0, 1e-40, -1e-40, torch.inf, -torch.inf])
    return logits


def bits(tensor: Tensor) -> list[int]:
    found: list[int] = tensor.contiguous().view(torch.int32).flatten().tolist()
    return found


def f32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def penalised(row: Tensor, tokens: list[int], prompt_len: int, params: SamplingParams) -> Tensor:
    """The logits of one token, id by id.

    Rounding a product or quotient of two fp32 numbers from fp64 is exact.
    """
    out = row.clone()
    repetition, frequency, presence = (
        f32(each) for each in (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    )
    for token_id in set(tokens):
        count = tokens[prompt_len:].count(token_id)
        logit = row[token_id].item()
        logit = f32(logit / repetition) if logit > 0 else f32(logit * repetition)
        logit = f32(logit - f32(frequency * count))
        out[token_id] = f32(logit - presence) if count else logit
    return out


@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("prompt_len", [2, 4, 7, 9, 11])
def test_penalties_equal_plain_python(logits: Tensor, penalties: dict[str, float], prompt_len: int) -> None:
    params = SamplingParams(temperature=0, **penalties)  # type: ignore[arg-type]
    found = logits.clone()
    apply_logits_processors(found, slices_of(span(TOKENS, 6, params, prompt_len=prompt_len)))
    for row in range(6):
        expected = penalised(logits[row], TOKENS[: 6 + row], prompt_len, params)
        assert bits(found[row]) == bits(expected)


@pytest.mark.parametrize("penalty", [1.3, 0.7, 2.0, 1.0001])
def test_repetition_penalty_has_the_bits_of_transformers(logits: Tensor, penalty: float) -> None:
    process = RepetitionPenaltyLogitsProcessor(penalty)
    params = SamplingParams(temperature=0, repetition_penalty=penalty)
    found = logits.clone()
    apply_logits_processors(found, slices_of(span(TOKENS, 6, params)))
    for row in range(6):
        expected = process(torch.tensor([TOKENS[: 6 + row]]), logits[row : row + 1].clone())
        assert bits(found[row]) == bits(expected)


def test_frequency_penalty_counts_a_long_history() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCAB, 5000).tolist()
    params = SamplingParams(temperature=0, frequency_penalty=0.01)
    found = torch.zeros(1, VOCAB)
    apply_logits_processors(found, slices_of(span(tokens, 1, params, prompt_len=1000)))
    assert found[0].mul(-100).round().int().tolist() == np.bincount(tokens[1000:], minlength=VOCAB).tolist()


def test_penalty_without_history_is_refused() -> None:
    short = dataclasses.replace(span(TOKENS, 2, SamplingParams(presence_penalty=1)), history=(1, 2))
    with pytest.raises(AssertionError, match="all tokens before"):
        apply_logits_processors(torch.zeros(2, VOCAB), slices_of(short))
