"""An interrupt at any line of a call ends the call alone: its requests, and no step."""

import copy
from typing import Any

import pytest
from scripted import reference

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from support.deferred_engine import deferred_engine
from support.interrupts import Interrupted, interrupt_at

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, deterministic=True)
FIRST, OTHER = [1, 2, 3], [4, 5]
CALLERS = (
    "engine/llm/llm.py",
    "engine/llm/engine_thread.py",
    "engine/llm/token_stream.py",
    "core/garbage_collection.py",
)


@pytest.fixture
def scripted_llm(auto_llm: LLM) -> LLM:
    twin = copy.copy(auto_llm)
    twin.engine = deferred_engine(auto_llm, "auto")
    return twin


def generate(llm: LLM) -> None:
    llm.generate([FIRST, FIRST], PARAMS)


def stream(llm: LLM) -> None:
    assert len(list(llm.stream(FIRST, PARAMS))) == PARAMS.max_tokens


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it comes in __del__, too
@pytest.mark.parametrize("call", [generate, stream])
@pytest.mark.parametrize(
    ("step", "again_after"), [(5, None), (9, 2)], ids=["once", "also during the recovery"]
)
def test_interrupt_at_any_line_of_a_call_ends_it_alone(
    scripted_llm: LLM, call: Any, step: int, again_after: int | None
) -> None:
    llm, num_interrupted = scripted_llm, 0
    while True:
        beside = llm.stream(OTHER, PARAMS)
        tokens = list(next(beside).token_ids)
        try:
            with interrupt_at(num_interrupted * step + 1, *CALLERS, again_after=again_after):
                call(llm)
        except Interrupted:
            num_interrupted += 1
        else:
            break
        tokens += [one for delta in beside for one in delta.token_ids]
        assert tuple(tokens) == reference(tuple(OTHER), PARAMS), "the other call goes on"
        (result,) = llm.generate([FIRST], PARAMS)
        assert result.token_ids == reference(tuple(FIRST), PARAMS)
        if again_after is None:
            assert not llm.engine.has_requests
    assert num_interrupted > 60 // step
    list(beside)
    llm.engine.scheduler.prefix_cache.clear()
    assert llm.engine.scheduler.pool.num_held == 0
    llm.engine.check()
