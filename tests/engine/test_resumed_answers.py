"""An answer that one engine began and another one continues: no token is repeated, missing or changed."""

import random
from dataclasses import replace
from typing import Any

import pytest

from holdfast import LLM
from holdfast.core.results import Delta, Result
from holdfast.core.sampling_params import SamplingParams, StructuredOutput
from holdfast.core.sent_answer import SentAnswer
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.engine import Engine
from holdfast.errors import GuaranteeLost, InvalidRequest
from holdfast.server.ipc.sent_record import SentRecord
from support.deferred_engine import deferred_engine

PROMPT = "the quick brown fox jumps over the lazy dog"
SEED = 11
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0},
    "logprobs": {"temperature": 0.8, "logprobs": 4},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "stop": {"temperature": 1.0, "stop": ["zzq", "e"], "min_tokens": 20},
    "n": {"temperature": 1.0, "n": 3, "ignore_eos": False, "logprobs": 1},
    "json": {"temperature": 1.0, "structured": StructuredOutput(json_object=True), "ignore_eos": False},
    "words": {"temperature": 1.0, "bad_words": ["the", "a"], "echo": True},
    "prompt_logprobs": {"temperature": 1.0, "prompt_logprobs": 2, "n": 2, "ignore_eos": False},
}


def params_of(kind: str, deterministic: bool) -> SamplingParams:
    settings = {"max_tokens": 40, "ignore_eos": True, **KINDS[kind]}
    return SamplingParams(**settings, seed=SEED, deterministic=deterministic)


def run(
    engine: Engine, params: SamplingParams, sent: SentAnswer | None = None, stop_after: int | None = None
) -> tuple[list[Delta], Result | None]:
    """All deltas and the result, or the first deltas of an engine that ends then."""
    deltas: list[Delta] = []
    engine.submit(engine.prepare(PROMPT, params, sent=sent))
    while engine.has_work:
        for output in engine.step():
            if not output.delta.is_empty:
                deltas.append(output.delta)
            if output.result is not None:
                return deltas, output.result
            if stop_after is not None and len(deltas) >= stop_after:
                return deltas, None
    raise AssertionError("the request did not end")


def restarted(llm: LLM) -> Engine:
    """An engine that knows nothing of the requests before."""
    engine = llm.engine
    engine.reset()
    return engine


def merged(deltas: list[Delta], num_choices: int) -> list[tuple[Any, ...]]:
    """What the client has of each choice."""
    choices = []
    for index in range(num_choices):
        own = [delta for delta in deltas if delta.index == index]
        choices.append(
            (
                "".join(delta.text for delta in own),
                [id_ for delta in own for id_ in delta.token_ids],
                [value for delta in own for value in delta.token_logprobs],
                [one for delta in own for one in delta.logprobs or ()],
                [delta.finish_reason for delta in own if delta.finish_reason],
            )
        )
    return choices


def record_of(deltas: list[Delta], params: SamplingParams) -> SentAnswer:
    record = SentRecord(params.n)
    for delta in deltas:
        record.add(delta)
    return record.answer(SEED)


@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_answer_continues_with_the_same_bits(llm: LLM, kind: str) -> None:
    params = params_of(kind, deterministic=True)
    whole, expected = run(restarted(llm), params)
    assert expected is not None
    places = range(1, max(2, len(whole) - 1))
    for stop_after in random.Random(kind).sample(places, min(2, len(places))):
        begun, _ = run(restarted(llm), params, stop_after=stop_after)
        rest, result = run(restarted(llm), params, record_of(begun, params))
        assert merged(begun + rest, params.n) == merged(whole, params.n), stop_after
        assert result is not None and result.determinism != "none"
        assert result.prompt_logprobs == expected.prompt_logprobs
        assert result.choices == expected.choices
        for name in ("choices", "prompt_logprobs", "seed", "settings", "mode"):
            assert result.receipt is not None and expected.receipt is not None
            assert result.receipt[name] == expected.receipt[name]
        restarted(llm).check()


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_answer_continues_without_gap(llm: LLM, kind: str) -> None:
    """On this backend an ordinary answer alone has the same tokens every time, too."""
    params = params_of(kind, deterministic=False)
    whole, expected = run(restarted(llm), params)
    assert expected is not None
    stop_after = max(1, len(whole) // 2)
    begun, _ = run(restarted(llm), params, stop_after=stop_after)
    rest, result = run(restarted(llm), params, record_of(begun, params))
    assert result is not None and result.error is None
    assert result.prompt_logprobs == expected.prompt_logprobs
    for got, wanted in zip(merged(begun + rest, params.n), merged(whole, params.n), strict=True):
        assert (got[0], got[1], got[4]) == (wanted[0], wanted[1], wanted[4])
    assert [list(choice.token_ids) for choice in result.choices] == [
        one[1] for one in merged(whole, params.n)
    ]
    restarted(llm).check()


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_answer_continues_with_async_scheduling(auto_llm: LLM, mode: str, deterministic: bool) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=SEED, deterministic=deterministic, n=2)
    whole, _ = run(deferred_engine(auto_llm, mode), params)
    for stop_after in range(1, len(whole) - 1, 3):
        begun, _ = run(deferred_engine(auto_llm, mode), params, stop_after=stop_after)
        engine = deferred_engine(auto_llm, mode)
        rest, result = run(engine, params, record_of(begun, params))
        assert merged(begun + rest, 2) == merged(whole, 2), stop_after
        assert result is not None and (result.determinism != "none") == deterministic
        while engine.has_work:
            engine.step()
        engine.check()


@pytest.mark.parametrize("change", ["logprob", "token"])
def test_contradiction_ends_with_guarantee_lost(llm: LLM, change: str) -> None:
    params = params_of("sampled", deterministic=True)
    begun, _ = run(restarted(llm), params, stop_after=4)
    sent = record_of(begun, params)
    choice = sent.choices[0]
    ids, logprobs = list(choice.token_ids), list(choice.logprobs)
    if change == "token":
        ids[1] = (ids[1] + 1) % 300
    logprobs[1] = TokenLogprob(ids[1], logprobs[1].logprob - (1e-3 if change == "logprob" else 0.0))
    forged = replace(choice, token_ids=tuple(ids), logprobs=tuple(logprobs))
    engine = restarted(llm)
    sizes = engine.scheduler.config.certified_sizes
    rest, result = run(engine, params, SentAnswer(SEED, (forged,)))
    assert result is not None and result.error_code == GuaranteeLost.code
    assert not any(delta.token_ids for delta in rest), "nothing after the contradiction is sent"
    assert engine.revocation is None and engine.scheduler.config.certified_sizes == sizes


def test_invalid_record_is_refused(llm: LLM) -> None:
    params = params_of("sampled", deterministic=True)
    begun, _ = run(restarted(llm), params, stop_after=4)
    sent = record_of(begun, params)
    choice = sent.choices[0]
    bad = [
        (SentAnswer(SEED, ()), "n is 1"),
        (SentAnswer(SEED, (replace(choice, logprobs=()),)), "the logprob of each"),
        (SentAnswer(SEED, (replace(choice, token_ids=(1 << 20,)),)), "not in the vocabulary"),
        (SentAnswer(SEED, (replace(choice, finish_reason="stop"),)), "has ended"),
        (SentAnswer(SEED, (replace(choice, token_ids=choice.token_ids * 20),)), "ask for more tokens"),
    ]
    for record, message in bad:
        with pytest.raises(InvalidRequest, match=message):
            restarted(llm).prepare(PROMPT, params, sent=record)
