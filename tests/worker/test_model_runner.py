"""Passes over a tiny model: scored and sampled logprobs, batches of logits, grammars."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import (
    Pass,
    PassKind,
    PassResult,
    Sampling,
    Span,
    StepPlan,
    TokenLogprob,
)
from holdfast.worker.model_runner import ModelRunner

PROMPT = tuple(torch.randint(3, 320, (150,), generator=torch.Generator().manual_seed(8)).tolist())
PAGES = (5, 9, 2, 7, 0, 11, 3, 8, 1, 10)
GREEDY = Sampling(SamplingParams(temperature=0, prompt_logprobs=3), 0, len(PROMPT))


def run(runner: ModelRunner, *spans: Span, kind: PassKind = PassKind.CANONICAL) -> PassResult:
    num_tokens = sum(span.num_tokens for span in spans)
    (result,) = runner.run(StepPlan((Pass(kind, spans, -(-num_tokens // 16) * 16),)))
    return result


def chunk(start: int, stop: int, sample_from: int, **asked: Any) -> Span:
    return Span(1, start, PROMPT[start:stop], PAGES, sample_from, GREEDY, **asked)


def test_scored_logprobs_have_the_bits_of_sampled_ones(runner: ModelRunner) -> None:
    """The sampled tokens, scored as known tokens, in one pass and in several."""
    sampled = run(runner, chunk(0, 150, 0, logprobs=3)).samples[0]
    tokens = tuple(each.token_id for each in sampled)
    scores = run(runner, chunk(0, 150, 150, scored_ids=tokens)).scores[0]
    assert list(scores) == [each.logprob for each in sampled]
    pieces: list[TokenLogprob] = []
    for start, stop in ((0, 1), (1, 40), (40, 149), (149, 150)):
        result = run(runner, chunk(start, stop, stop - start, scored_ids=tokens[start:stop]))
        pieces += result.scores[0]
        assert result.samples == ((),)
    assert pieces == list(scores)


def test_cached_tokens_are_computed_for_their_logits_alone(runner: ModelRunner) -> None:
    """Their KV stays as it is."""
    tokens = PROMPT[1:150]
    scores = run(runner, chunk(0, 149, 149, scored_ids=tokens)).scores[0]
    keys = runner._store.layers[0].keys
    before = keys.clone()
    keys[PAGES[2], :, :, 15] = 0  # of position 47
    again = run(runner, chunk(47, 149, 102, scored_ids=tokens[47:], num_cached=1)).scores[0]
    assert not keys[PAGES[2], :, :, 15].any() and again != scores[47:]
    keys.copy_(before)
    again = run(runner, chunk(47, 149, 102, scored_ids=tokens[47:], num_cached=1)).scores[0]
    assert again == scores[47:] and keys.equal(before)


def test_scored_and_sampled_tokens_in_one_span(runner: ModelRunner) -> None:
    known = tuple(range(20, 29))
    mixed = run(runner, chunk(0, 12, 10, scored_ids=known, logprobs=1))
    apart = run(runner, chunk(0, 12, 12, scored_ids=(0, *known, 0, 0)))
    plain = run(runner, chunk(0, 12, 10, logprobs=1))
    assert mixed.samples == plain.samples
    assert mixed.scores[0] == apart.scores[0][1:10]
    assert [each.token_id for each in mixed.scores[0]] == list(known)
    assert all(len(each.top) == 3 for each in mixed.scores[0])
    assert plain.scores == ()


def test_scores_are_returned_by_span(runner: ModelRunner) -> None:
    none = Span(2, 0, PROMPT[:3], (12,), 2, GREEDY)
    silent = Sampling(SamplingParams(temperature=0), 0, 9)
    bare = Span(3, 0, PROMPT[:5], (13,), 5, silent, scored_ids=(1, 2))
    result = run(runner, none, chunk(0, 20, 20, scored_ids=PROMPT[1:20]), bare)
    assert [len(each) for each in result.scores] == [0, 19, 2]
    assert [len(each) for each in result.samples] == [1, 0, 0]
    assert [each.top for each in result.scores[2]] == [(), ()]
    alone = run(runner, bare)
    assert alone.scores == (result.scores[2],)


@pytest.mark.parametrize("most", [1, 5, 64])
def test_logits_batch_size_changes_nothing(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """And no batch is larger than the limit."""
    penalised = Sampling(SamplingParams(temperature=0.9, frequency_penalty=1.5), 3, 20)
    window = Span(2, 0, PROMPT[:90], (12, 13, 14, 15, 16, 17), 0, penalised, logprobs=2, with_checksums=True)
    again = replace(window, request_id=3, pages=(18, 19, 20, 21, 22, 23))
    spans = (window, chunk(0, 150, 149, scored_ids=PROMPT[1:150]), again)
    monkeypatch.setattr(runner, "_max_logits_tokens", 10**6)
    whole = run(runner, *spans)
    monkeypatch.setattr(runner, "_max_logits_tokens", most)
    sizes: list[int] = []
    logits = runner._decoder.logits
    monkeypatch.setattr(
        runner._decoder,
        "logits",
        lambda hidden, canonical: sizes.append(len(hidden)) or logits(hidden, canonical=canonical),
    )
    assert run(runner, *spans) == whole
    assert max(sizes) == most
    assert sum(sizes) == 90 + 149 + 1 + 90
    assert whole.samples[0] == whole.samples[2]
