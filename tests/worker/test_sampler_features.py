"""Requests with random sampling features: a window equals its tokens one by one, neighbours change
nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import NO_TOKEN, Sampled, Span
from holdfast.numerics.ops import Backend
from holdfast.worker import sampler
from holdfast.worker.logits import LogitsSlice, Masks, batch_slices, gather_logprobs
from holdfast.worker.sampler import apply_logits_processors
from holdfast.worker.transfer import HostCopies
from worker.sampler_spans import VOCAB, mask, slices_of, span

WINDOW = 7
CPU = torch.device("cpu")


def sample(backend: Backend, logits: Tensor, some: Sequence[LogitsSlice]) -> list[Sampled]:
    return sampler.sample(backend, logits, some, HostCopies(CPU)).read()


@dataclass(frozen=True)
class RandomRequest:
    """A request with random settings, and the logits of one of its windows."""

    tokens: list[int]
    params: SamplingParams
    prompt_len: int
    forbidden: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]
    masks: Masks
    logits: Tensor
    logprobs: int | None

    def tokens_between(self, first: int, stop: int) -> Span:
        """Tokens first .. stop - 1 of the window."""
        return span(
            self.tokens[: len(self.tokens) - WINDOW + stop],
            stop - first,
            self.params,
            prompt_len=self.prompt_len,
            forbidden=self.forbidden,
            bad_words=self.bad_words,
            logprobs=self.logprobs,
            with_checksums=True,
        )


def random_request(seed: int) -> RandomRequest:
    rng = random.Random(seed)

    def some(count: int) -> list[int]:
        return [rng.randrange(12) for _ in range(count)]  # few ids, so that several rules apply to one token

    tokens = some(rng.randint(WINDOW, 40))
    settings = {
        "repetition_penalty": rng.choice([0.5, 1.3, 3.0]),
        "frequency_penalty": rng.uniform(-2, 2),
        "presence_penalty": rng.uniform(-2, 2),
        "logit_bias": {token_id: rng.uniform(-9, 9) for token_id in some(5)},
        "allowed_token_ids": [*range(4, 20), *some(3)],
        "bad_token_ids": some(3),
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.05,
        "min_tokens": rng.randint(1, 16),
    }
    chosen = {name: value for name, value in settings.items() if rng.random() < 0.5}
    logprobs = rng.choice([None, 0, 4])
    if logprobs is not None and rng.random() < 0.5:
        chosen |= {"logprobs": logprobs, "logprob_token_ids": some(rng.randint(1, 4))}
    masks: Masks = ()
    if rng.random() < 0.5:
        masks = tuple(rng.choice([None, b"", mask(*some(3)), mask(*range(1, 190))]) for _ in range(WINDOW))
    generator = torch.Generator().manual_seed(seed)
    return RandomRequest(
        tokens=tokens,
        params=SamplingParams(temperature=rng.choice([0.0, 0.8]), **chosen),
        prompt_len=rng.randint(1, len(tokens)),
        forbidden=(4, 5) if "min_tokens" in chosen else (),
        bad_words=tuple(tuple(some(rng.randint(1, 3))) for _ in range(4)) if rng.random() < 0.5 else (),
        masks=masks,
        logits=torch.randn(WINDOW, VOCAB, generator=generator) * 3,
        logprobs=logprobs,
    )


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)


@pytest.mark.parametrize("seed", range(60))
def test_window_of_a_random_request_equals_single_tokens(backend: Backend, seed: int) -> None:
    asked = random_request(seed)
    changed = asked.logits.clone()
    apply_logits_processors(changed, slices_of(asked.tokens_between(0, WINDOW), masks=[asked.masks]))
    window = sample(
        backend, asked.logits.clone(), slices_of(asked.tokens_between(0, WINDOW), masks=[asked.masks])
    )
    for row in range(WINDOW):
        alone = slices_of(asked.tokens_between(row, row + 1), masks=[asked.masks[row : row + 1]])
        logits = asked.logits[row : row + 1].clone()
        apply_logits_processors(logits, alone)
        assert torch.equal(bits(logits[0]), bits(changed[row]))
        assert sample(backend, asked.logits[row : row + 1].clone(), alone) == window[row : row + 1]
        if asked.logprobs is None or window[row].token_id == NO_TOKEN:
            assert window[row].logprob is None
        else:  # those of the logits that no processor has changed
            raw, token_id = asked.logits[row : row + 1], window[row].token_id
            every = gather_logprobs(backend, raw, torch.tensor([token_id]), [VOCAB], HostCopies(CPU))
            (whole,) = every.read([token_id])
            names = asked.params.named_ids
            top = tuple(one for one in whole.top if one[0] in (token_id, *names))
            assert window[row].logprob == replace(whole, top=top if names else whole.top[: asked.logprobs])


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_and_batch_sizes_change_nothing(backend: Backend, seed: int) -> None:
    """Ten requests together, in batches of any size, compared with each alone."""
    asked = [random_request(1000 + 10 * seed + index) for index in range(10)]
    spans, masks = [each.tokens_between(0, WINDOW) for each in asked], [each.masks for each in asked]
    logits = torch.cat([each.logits for each in asked])
    found: list[Sampled] = []
    for some in batch_slices(spans, masks, max_tokens=1 + seed):
        rows = slice(len(found), len(found) + sum(part.num_tokens for part in some))
        found += sample(backend, logits[rows].clone(), some)
    for index, each in enumerate(asked):
        alone = sample(backend, each.logits.clone(), slices_of(spans[index], masks=[each.masks]))
        assert found[index * WINDOW : (index + 1) * WINDOW] == alone


def test_random_requests_cover_every_feature() -> None:
    """Otherwise the tests above would prove little."""
    asked = [random_request(seed) for seed in range(60)]
    given = [each for each in asked if any(found is not None for found in each.masks)]
    assert 10 < len(given) < 50
    assert sum(each.params.penalises for each in asked) > 20
    assert sum(bool(each.bad_words) and bool(each.masks) for each in asked) > 5
    assert sum(bool(each.params.named_ids) for each in asked) > 10
    outcomes = [left for each in asked for left in _num_left(each)]
    assert {0, 1, VOCAB} < set(outcomes)


def _num_left(asked: RandomRequest) -> list[int]:
    logits = asked.logits.clone()
    apply_logits_processors(logits, slices_of(asked.tokens_between(0, WINDOW), masks=[asked.masks]))
    left: list[int] = (logits > -torch.inf).sum(1).tolist()
    return left
