"""Several choices for one prompt, and echo."""

from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.core.request import branch_seed
from holdfast.engine.llm.llm import LLM

PROMPT = "the quick brown fox jumps over the lazy dog and the quick dog sleeps"


def settings(**changes: Any) -> SamplingParams:
    usual = {
        "max_tokens": 12,
        "temperature": 0.9,
        "seed": 5,
        "deterministic": True,
        "ignore_eos": True,
        "logprobs": 2,
    }
    return SamplingParams(**{**usual, **changes})


def test_choices_are_distinct_and_each_follows_from_its_seed(llm: LLM) -> None:
    result = llm.generate([PROMPT], settings(n=4))[0]
    assert len({choice.token_ids for choice in result.choices}) == 4
    for index, choice in enumerate(result.choices):
        alone = llm.generate([PROMPT], settings(seed=branch_seed(5, index)))[0]
        assert (choice.token_ids, choice.logprobs, choice.text) == (
            alone.token_ids,
            alone.logprobs,
            alone.text,
        )
    assert result.seed == 5
    stats = result.stats
    assert sum(len(choice.token_ids) for choice in result.choices) == stats.accepted + stats.canonical_tokens
    assert stats.candidates == stats.accepted + stats.rolled_back


def test_cancel_after_the_first_choice_ended_ends_the_others(auto_llm: LLM) -> None:
    engine = auto_llm.engine
    stop = auto_llm.generate([PROMPT], settings(temperature=0.9, max_tokens=3))[0].token_ids[1]
    request = engine.prepare(PROMPT, settings(n=4, max_tokens=200, stop_token_ids=[stop], logprobs=None))
    engine.submit(request)
    ended = 0
    while not ended:  # the first answer ends with its second token
        ended = sum(update.delta.finish_reason is not None for update in engine.step())
    updates = engine.abort(request.request_id)
    assert updates[-1].result is not None
    reasons = [choice.finish_reason for choice in updates[-1].result.choices]
    assert reasons[0] == "stop" and "abort" in reasons
    assert not engine.has_requests


def test_echo_prepends_the_prompt_without_stop_search(llm: LLM) -> None:
    plain = llm.generate([PROMPT], settings(stop="fox"))[0]
    echoed = llm.generate([PROMPT], settings(stop="fox", echo=True))[0]
    assert echoed.text == PROMPT + plain.text
    assert echoed.token_ids == plain.token_ids


def test_echo_of_token_ids_is_their_text(llm: LLM) -> None:
    ids = llm.engine.tokenizer.encode(PROMPT)
    assert llm.generate([ids], settings(echo=True, max_tokens=0))[0].text == PROMPT


@pytest.mark.parametrize("prompt", [[7], [7, 8], list(range(3, 90))])
def test_max_tokens_zero_gives_a_complete_result(llm: LLM, prompt: list[int]) -> None:
    result = llm.generate([prompt], settings(max_tokens=0, prompt_logprobs=1))[0]
    assert (result.token_ids, result.finish_reason) == ((), "length")
    assert result.prompt_logprobs is not None and len(result.prompt_logprobs) == len(prompt)
    assert result.prompt_logprobs[0] is None
