"""Penalties and bad words from the tokens beside the KV: the bits of those computed on the host."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import NO_TOKEN, UNKNOWN_TOKEN, Span
from holdfast.numerics.backends.triton.sampler import token_history
from holdfast.worker.input_batch import PageTableCache
from holdfast.worker.logits_processors.device_history import DeviceTokens
from holdfast.worker.sampler import apply_logits_processors
from worker.sampler_spans import VOCAB, slices_of, span

PAGE_SIZE = 4
NUM_PAGES = 32
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PENALTIES = {"repetition_penalty": 1.17, "frequency_penalty": -0.61, "presence_penalty": 0.83}


def requests(seed: int) -> list[Span]:
    """Windows and single tokens of requests with different settings, with their history."""
    rng = random.Random(seed)
    found = []
    for number, settings in enumerate(
        ({}, PENALTIES, {"repetition_penalty": 0.7}, {"frequency_penalty": 0.37}, PENALTIES)
    ):
        tokens = [rng.randrange(9) for _ in range(rng.randint(9, 20))]
        words = ((tokens[-1], 5), (tokens[-2], tokens[-1], 6), (7,), (8, 8, 8, 8, 2)) if number % 2 else ()
        params = SamplingParams(temperature=0, logit_bias={3: 1.5, 150: -2.0}, **settings)
        found.append(span(tokens, rng.choice([1, 1, 4]), params, bad_words=words))
    return found


def on_device(spans: list[Span], history: token_history.DeviceTokenHistory) -> list[Span]:
    """The same spans without history; their tokens are beside the KV, in pages in any order."""
    free = list(range(NUM_PAGES))
    random.Random(1).shuffle(free)
    found = []
    for one in spans:
        tokens = torch.tensor([*one.history, *one.token_ids]) if one.history else torch.zeros(one.stop).long()
        pages = tuple(free.pop() for _ in range(-(-len(tokens) // PAGE_SIZE)))
        positions = torch.arange(len(tokens))
        slots = torch.tensor(pages)[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        history.write(slots.to(DEVICE), tokens.to(DEVICE))
        found.append(replace(one, pages=pages, history=(), token_ids=(UNKNOWN_TOKEN,) * one.num_tokens))
    return found


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("group", [2, 64])
def test_device_history_gives_the_bits_of_the_host(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_history, "_GROUP", group)
    history = token_history.DeviceTokenHistory(NUM_PAGES, PAGE_SIZE, DEVICE)
    tokens = DeviceTokens(history, PageTableCache())
    for seed in range(3):  # the counts of one call do not reach the next
        spans = requests(seed)
        num_rows = sum(one.num_sampled for one in spans)
        logits = torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
        logits[:, 4] = 0.0
        expected, found = logits.clone(), logits.to(DEVICE)
        apply_logits_processors(expected, slices_of(*spans))
        apply_logits_processors(found, slices_of(*on_device(spans, history)), tokens)
        assert same_bits(found.cpu(), expected)


@pytest.mark.usefixtures("interpreter")
def test_no_token_counts_as_the_token_0_that_is_embedded() -> None:
    history = token_history.DeviceTokenHistory(NUM_PAGES, PAGE_SIZE, DEVICE)
    spans = [replace(one, history=tuple(each % 3 for each in one.history)) for one in requests(0)]
    expected = torch.randn(sum(one.num_sampled for one in spans), VOCAB)
    found = expected.to(DEVICE, copy=True)
    apply_logits_processors(expected, slices_of(*spans))
    slices = slices_of(*on_device(spans, history))
    history._tokens[history._tokens == 0] = NO_TOKEN
    apply_logits_processors(found, slices, DeviceTokens(history, PageTableCache()))
    assert same_bits(found.cpu(), expected)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.usefixtures("interpreter")
def test_counts_are_renewed_after_a_failed_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    history = token_history.DeviceTokenHistory(NUM_PAGES, PAGE_SIZE, DEVICE)
    tokens = DeviceTokens(history, PageTableCache())
    spans = requests(0)
    slices = slices_of(*on_device(spans, history))
    logits = torch.randn(sum(one.num_sampled for one in spans), VOCAB)
    expected = logits.clone()
    apply_logits_processors(expected, slices_of(*spans))
    with monkeypatch.context() as broken:
        broken.setattr(token_history, "_penalise", None)
        with pytest.raises(TypeError):
            apply_logits_processors(logits.to(DEVICE), slices, tokens)
    found = logits.to(DEVICE)
    apply_logits_processors(found, slices, tokens)
    assert same_bits(found.cpu(), expected)
