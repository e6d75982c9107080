"""Streams of one LLM: read to the end, left early, read in turns, read by several threads."""

import copy
import gc
from typing import Any

import pytest

from holdfast import SamplingParams, TokensPrompt
from holdfast.core.results import Delta, Result
from holdfast.core.step_plan import StepPlan
from holdfast.engine.llm.llm import LLM
from holdfast.errors import EngineStopped, PassFailed
from support.stepping import Broken

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, deterministic=True, logprobs=2)
LONG = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
PROMPTS = ["the quick fox", "the dog", "a b c 1 2 3"]


def joined(deltas: list[Delta]) -> tuple[Any, ...]:
    return (
        "".join(delta.text for delta in deltas),
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        tuple(one for delta in deltas for one in delta.logprobs or ()),
    )


def whole(result: Result | None) -> tuple[Any, ...]:
    assert result is not None
    return result.text, result.token_ids, result.logprobs


def test_deltas_join_to_the_result_of_generate(llm: LLM) -> None:
    expected = llm.generate(PROMPTS[:1], PARAMS)[0]
    stream = llm.stream(PROMPTS[0], sampling_params=PARAMS)
    deltas = list(stream)
    assert joined(deltas) == whole(stream.result) == whole(expected)
    assert deltas[-1].finish_reason == "length" and not any(one.finish_reason for one in deltas[:-1])
    assert [one.text for one in deltas[0].logprobs or ()] == [  # type: ignore[attr-defined]
        llm.get_tokenizer().decode(id_) for id_ in deltas[0].token_ids
    ]
    assert stream.result is not None and stream.result.prompt == PROMPTS[0]
    assert list(stream) == []


def test_stream_takes_the_forms_of_a_prompt(auto_llm: LLM) -> None:
    ids = auto_llm.get_tokenizer().encode(PROMPTS[0])
    forms: list[Any] = [PROMPTS[0], ids, {"prompt": PROMPTS[0]}, TokensPrompt(prompt_token_ids=ids)]
    assert len({joined(list(auto_llm.stream(form, PARAMS))) for form in forms}) == 1
    chat = auto_llm.stream_chat([{"role": "user", "content": "hello"}], PARAMS)
    assert joined(list(chat)) == whole(auto_llm.chat([{"role": "user", "content": "hello"}], PARAMS))


def test_closing_a_stream_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("the dog", LONG)
    next(stream)
    stream.close()
    stream.close()
    assert not llm.engine.has_requests
    assert next(stream, None) is None and stream.result is None
    with llm.stream("the dog", LONG) as second:
        next(second)
    assert not llm.engine.has_requests
    unread = llm.stream("the dog", LONG)
    unread.close()
    assert not llm.engine.has_work


def test_exception_in_the_consumer_ends_the_request(llm: LLM) -> None:
    def consume() -> None:
        for _ in llm.stream("the dog", LONG):
            raise ValueError("the consumer failed")

    with pytest.raises(ValueError, match="the consumer failed"):
        consume()
    gc.collect()  # the traceback held the stream
    assert not llm.engine.has_requests
    llm.generate("the dog", PARAMS)


def test_streams_read_in_turns_beside_a_batch_give_the_same_answers(llm: LLM) -> None:
    expected = [whole(result) for result in llm.generate(PROMPTS, PARAMS)]
    streams = [llm.stream(prompt, PARAMS) for prompt in PROMPTS]
    deltas: list[list[Delta]] = [[] for _ in streams]
    for turn in range(3):
        for number, stream in enumerate(streams):
            deltas[number].append(next(stream))
        if turn == 1:
            assert [whole(result) for result in llm.generate(PROMPTS, PARAMS)] == expected
    for number, stream in enumerate(streams):
        deltas[number] += stream
    assert [joined(each) for each in deltas] == expected


def test_failed_answer_raises_after_the_last_delta(auto_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = auto_llm.stream("the dog", PARAMS)
    next(stream)

    monkeypatch.setattr(auto_llm.engine, "runner", Broken())
    assert next(stream).finish_reason == "error"
    with pytest.raises(PassFailed, match="a cosmic ray"):
        next(stream)
    assert stream.result is not None and stream.result.error_code == "pass_failed"
    assert next(stream, None) is None


def test_call_in_the_engines_thread_raises(auto_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not wait for itself."""
    inner = auto_llm.engine.runner

    class Nested:
        def run(self, plan: StepPlan) -> Any:
            if not nested:
                nested.append(True)
                auto_llm.generate("the fox", PARAMS)
            return inner.run(plan)

    nested: list[bool] = []
    monkeypatch.setattr(auto_llm.engine, "runner", Nested())
    result = auto_llm.generate("the dog", PARAMS)[0]
    assert "this is the engine's thread" in (result.error or "")
    assert auto_llm.generate("the dog", PARAMS)[0].error is None
    assert not auto_llm.engine.has_work


def test_closed_llm_ends_streams_and_refuses_calls(auto_llm: LLM) -> None:
    llm = copy.copy(auto_llm)
    llm.engine = auto_llm.engine.restarted(auto_llm.engine.scheduler.config)
    with llm:
        stream = llm.stream("the dog", LONG)
        next(stream)
    llm.close()
    with pytest.raises(EngineStopped, match="closed"):
        list(stream)
    for call in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: llm.engine):
        with pytest.raises(EngineStopped, match="this LLM is closed"):
            call()
