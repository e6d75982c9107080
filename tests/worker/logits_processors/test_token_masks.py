"""Logit bias and token masks: token lists, bad words, min_tokens, grammars."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor

from holdfast.core.sampling_params import SamplingParams
from holdfast.worker.logits_processors.token_masks import _lists
from holdfast.worker.sampler import apply_logits_processors
from worker.sampler_spans import VOCAB, mask, slices_of, span

GREEDY = SamplingParams(temperature=0)
TOKENS = [3, 7, 7, 1, 9, 3, 3, 120, 9, 9, 50]


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(4)) * 3


def masked(row: Tensor) -> set[int]:
    return set((row == -torch.inf).nonzero()[:, 0].tolist())


def test_plain_request_changes_no_logits(logits: Tensor) -> None:
    found = logits.clone()
    apply_logits_processors(found, slices_of(span(TOKENS, 4, GREEDY)))
    assert torch.equal(found, logits)


def test_bias_is_added_to_every_token(logits: Tensor) -> None:
    params = SamplingParams(temperature=0, logit_bias={8: 2.3, 199: -100, 10**6: 5})
    found = logits.clone()
    apply_logits_processors(found, slices_of(span(TOKENS, 3, params), span(TOKENS, 1, GREEDY)))
    expected = logits.clone()
    expected[:3, 8] += 2.3
    expected[:3, 199] -= 100
    assert torch.equal(found, expected)


def test_bias_comes_after_penalties(logits: Tensor) -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2.0, logit_bias=[(3, 10.0)])
    found = logits[:1].clone()
    found[0, 3] = 4.0
    apply_logits_processors(found, slices_of(span(TOKENS, 1, params)))
    assert found[0, 3] == 4.0 / 2 + 10


def test_allowed_and_bad_token_ids_mask_the_others(logits: Tensor) -> None:
    params = SamplingParams(temperature=0, allowed_token_ids=[5, 6, 7, 7, 10**6], bad_token_ids=[6, 8, 10**6])
    found = logits.clone()
    apply_logits_processors(found, slices_of(span(TOKENS, 2, GREEDY), span(TOKENS, 2, params)))
    assert masked(found[1]) == set()
    for row in (2, 3):
        assert masked(found[row]) == set(range(VOCAB)) - {5, 7}
        assert torch.equal(found[row, [5, 7]], logits[row, [5, 7]])


def test_token_lists_are_cached_for_the_life_of_the_params(logits: Tensor) -> None:
    before = len(_lists)
    params = SamplingParams(temperature=0, allowed_token_ids=[1, 2])
    for _ in range(3):
        apply_logits_processors(logits, slices_of(span(TOKENS, 4, params)))
    assert len(_lists) == before + 1
    del params
    assert len(_lists) == before


BAD_WORDS = ((50, 4), (9, 9, 50), (8,), (9, 9, 3, 4), (3, 3), (1, 2, 3, 7, 7))


def test_bad_words_match_the_prompt_from_its_start() -> None:
    words = ((3, 7, 7, 1, 6), (5, 3, 7, 7, 1, 5))
    found = torch.zeros(1, VOCAB)
    apply_logits_processors(found, slices_of(span(TOKENS[:4], 1, GREEDY, bad_words=words)))
    assert masked(found[0]) == {6}


def test_bad_words_equal_transformers(logits: Tensor) -> None:
    process = NoBadWordsLogitsProcessor([list(word) for word in BAD_WORDS], eos_token_id=0)
    found = logits.clone()
    apply_logits_processors(found, slices_of(span(TOKENS, 4, GREEDY, bad_words=BAD_WORDS)))
    for row in range(4):
        expected = process(torch.tensor([TOKENS[: 8 + row]]), logits[row : row + 1].clone())
        assert torch.equal(found[row], expected[0])


def test_end_tokens_are_masked_until_min_tokens(logits: Tensor) -> None:
    params = SamplingParams(temperature=0, min_tokens=3, max_tokens=9)
    apply_logits_processors(logits, slices_of(span([1] * 10, 4, params, prompt_len=7, forbidden=(8, 10**6))))
    # The first sampled token is the first of the answer.
    assert [masked(row) for row in logits] == [{8}, {8}, {8}, set()]


def test_grammar_masks_tokens(logits: Tensor) -> None:
    masks = (mask(4, 5), None, b"", mask(1, vocab=8))
    found = logits.clone()
    apply_logits_processors(found, slices_of(span(TOKENS, 4, GREEDY), masks=[masks]))
    everything = set(range(VOCAB))
    assert [masked(row) for row in found] == [everything - {4, 5}, set(), everything, everything - {1}]
    assert torch.equal(found[0, [4, 5]], logits[0, [4, 5]])


def test_mask_may_be_longer_than_the_vocabulary(logits: Tensor) -> None:
    apply_logits_processors(
        logits[:1], slices_of(span(TOKENS, 1, GREEDY), masks=[(mask(4, 210, 263, vocab=264),)])
    )
    assert masked(logits[0]) == set(range(VOCAB)) - {4}


def test_min_tokens_is_waived_if_the_grammar_is_complete(logits: Tensor) -> None:
    """If only end tokens are allowed they stay allowed; if others are, end tokens are masked."""
    params = SamplingParams(temperature=0, min_tokens=9)
    masks = (mask(4, 8), mask(8), mask(8, 9), None)
    early = span(TOKENS, 4, params, forbidden=(8, 9), eos=(8, 9, 10**6))
    apply_logits_processors(logits, slices_of(early, masks=[masks]))
    everything = set(range(VOCAB))
    assert [masked(row) for row in logits] == [
        everything - {4},
        everything - {8},
        everything - {8, 9},
        {8, 9},
    ]


@pytest.mark.parametrize(
    ("lists", "bad_words"),
    [
        ({"bad_token_ids": [4, 5]}, ()),
        ({"allowed_token_ids": [3, 8]}, ()),
        ({}, ((4,), (5,))),
        ({"bad_token_ids": [4]}, ((TOKENS[-1], 5),)),
    ],
)
def test_min_tokens_is_waived_if_other_settings_leave_only_end_tokens(
    logits: Tensor, lists: dict[str, Any], bad_words: tuple[tuple[int, ...], ...]
) -> None:
    params = SamplingParams(temperature=0, min_tokens=9, **lists)
    early = span(TOKENS, 1, params, forbidden=(8,), eos=(8,), bad_words=bad_words)
    apply_logits_processors(logits[:1], slices_of(early, masks=[(mask(4, 5, 8),)]))
    assert masked(logits[0]) == set(range(VOCAB)) - {8}


def test_min_tokens_is_not_waived_for_client_stop_ids(logits: Tensor) -> None:
    """Stop id 7 is text of the grammar: ending with it would leave the answer incomplete."""
    params = SamplingParams(temperature=0, min_tokens=9, stop_token_ids=[7])
    early = span(TOKENS, 3, params, forbidden=(7, 8), eos=(8,))
    apply_logits_processors(logits[:3], slices_of(early, masks=[(mask(7), mask(7, 8), mask(4, 7, 8))]))
    everything = set(range(VOCAB))
    assert [masked(row) for row in logits[:3]] == [everything, everything - {8}, everything - {4}]


def test_grammar_and_token_lists_combine(logits: Tensor) -> None:
    params = SamplingParams(temperature=0, allowed_token_ids=[4, 5, 6, 8], bad_token_ids=[5])
    narrow = span(TOKENS, 1, params, bad_words=((50, 4), (50, 3)))
    apply_logits_processors(logits[:1], slices_of(narrow, masks=[(mask(4, 5, 6, 7),)]))
    assert masked(logits[0]) == set(range(VOCAB)) - {6}
