"""`score`: the logprobs of a completion are the bits reported when it was generated."""

import random
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.core.results import Result
from holdfast.engine.llm.llm import LLM
from holdfast.errors import InvalidRequest, PromptTooLong


def draw(rng: random.Random, vocab: int, **changes: Any) -> tuple[list[int], SamplingParams]:
    prompt = [rng.randrange(3, vocab) for _ in range(rng.choice([1, 5, 16, 33, 120]))]
    usual = {"max_tokens": rng.choice([1, 7, 40, 300]), "temperature": rng.choice([0.0, 0.8, 1.5])}
    more = {"seed": rng.randrange(1 << 40), "deterministic": True, "ignore_eos": True, "logprobs": 0}
    return prompt, SamplingParams(**{**usual, **more, **changes})  # type: ignore[arg-type]


def reported(result: Result) -> list[float]:
    return [one.logprob for one in result.logprobs or ()]


def test_scores_equal_generated_logprobs_warm_and_cold(auto_llm: LLM, verify_llm: LLM) -> None:
    rng = random.Random(3)
    vocab = auto_llm.engine.limits.vocab_size
    drawn = [draw(rng, vocab) for _ in range(40)]
    made: list[Result] = []
    for half, llm in ((drawn[:20], auto_llm), (drawn[20:], verify_llm)):
        made += llm.generate([prompt for prompt, _ in half], [params for _, params in half])
    pairs = [(prompt, result.token_ids) for (prompt, _), result in zip(drawn, made, strict=True)]
    expected = [reported(result) for result in made]
    for llm in (auto_llm, verify_llm):
        assert llm.score_batch(pairs) == expected  # warm: what this engine generated itself
        llm.engine = llm.engine.restarted(llm.engine.scheduler.config)
        assert llm.score_batch(pairs) == expected  # cold
        assert [llm.score(*pair) for pair in pairs[::10]] == expected[::10]  # alone


def test_prompt_logprobs_are_scores_of_the_prompt(llm: LLM) -> None:
    _, params = draw(random.Random(2), 300, max_tokens=3, prompt_logprobs=2)
    prompt = [5, 9, 100, 7, 7, 31] * 7
    result = llm.generate([prompt], params)[0]
    assert result.prompt_logprobs is not None
    assert [one.logprob for one in result.prompt_logprobs if one is not None] == llm.score(
        prompt[:1], prompt[1:]
    )
    assert [one.token_id for one in result.prompt_logprobs if one is not None] == prompt[1:]
    assert all(len(one.top) == 2 for one in result.prompt_logprobs if one is not None)


def test_logprobs_that_are_kept_with_cached_pages_are_those_of_the_prompt(
    auto_llm: LLM, verify_llm: LLM
) -> None:
    rng = random.Random(8)
    shared = [rng.randrange(3, 300) for _ in range(160)]
    prompts = [
        [*shared[: rng.choice([75, 112, 160])], *([9 + number] * (1 + number % 4))] for number in range(12)
    ]
    params = [
        SamplingParams(
            max_tokens=number % 3, temperature=0, deterministic=True, prompt_logprobs=number % 2 * 3
        )
        for number in range(12)
    ]
    expected = []
    for prompt, one in zip(prompts, params, strict=True):  # each alone, in an engine without pages
        auto_llm.engine = auto_llm.engine.restarted(auto_llm.engine.scheduler.config)
        expected += auto_llm.generate([prompt], one)
    for llm in (auto_llm, verify_llm):
        llm.engine = llm.engine.restarted(llm.engine.scheduler.config)
        for _ in range(2):  # at once, then warm
            results = llm.generate(prompts, params)
            assert [(one.token_ids, one.prompt_logprobs) for one in results] == [
                (one.token_ids, one.prompt_logprobs) for one in expected
            ]
        assert all(one.stats.cached_tokens >= 64 for one in results)
        pairs = [(prompt[:74], prompt[74:]) for prompt in prompts]
        assert llm.score_batch(pairs) == [
            [each.logprob for each in one.prompt_logprobs[74:] if each is not None] for one in expected
        ]


def test_text_completion_is_tokenised_alone(llm: LLM) -> None:
    tokenizer = llm.engine.tokenizer
    ids = tokenizer.encode(" fox", add_special_tokens=False)
    assert llm.score("the quick", " fox") == llm.score(tokenizer.encode("the quick"), ids)


@pytest.mark.parametrize("pair", [([], [5]), ([5], []), ("", ""), ([5], ""), ("", "x")])
def test_nothing_to_score_is_refused(llm: LLM, pair: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidRequest):
        llm.score(*pair)


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, prompt_logprobs=0)]
)
def test_score_must_not_generate(llm: LLM, params: SamplingParams) -> None:
    with pytest.raises(InvalidRequest, match="without generating"):
        llm.engine.prepare([5], params, completion=[6])


def test_too_long_completion_is_refused(llm: LLM) -> None:
    with pytest.raises(PromptTooLong):
        llm.score([5] * 10, [6] * llm.engine.limits.max_model_len)
    with pytest.raises(InvalidRequest):
        llm.score([5], [10**6])
