"""An interrupt at any line of a call ends the call alone: its requests, and no step."""

import copy
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from scripted import reference

import holdfast
from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from support.deferred_engine import deferred_engine

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, deterministic=True)
FIRST, OTHER = [1, 2, 3], [4, 5]
ROOT = str(Path(holdfast.__file__).parent)
CALLERS = (
    "engine/llm/llm.py",
    "engine/llm/engine_thread.py",
    "engine/llm/token_stream.py",
    "core/garbage_collection.py",
)


class Interrupted(KeyboardInterrupt):
    """Raised by the trace function."""


@contextmanager
def interrupt_at(line: int, *paths: str, again_after: int | None = None) -> Iterator[None]:
    """Raise at the line-th line that runs in files below these paths, and once more later."""
    prefixes = tuple(f"{ROOT}/{path}" for path in paths)
    left = [line, *([] if again_after is None else [again_after])]

    def trace_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and left:
            left[0] -= 1
            if left[0] == 0:
                del left[0]
                if left:
                    sys.settrace(trace_call)  # raising ends the trace
                raise Interrupted
        return trace_line

    def trace_call(frame: FrameType, event: str, _: Any) -> Any:
        return trace_line if frame.f_code.co_filename.startswith(prefixes) else None

    before = sys.gettrace()
    gc.disable()  # an interrupt in a finaliser is printed, not raised
    sys.settrace(trace_call)
    try:
        yield
    finally:
        sys.settrace(before)
        gc.enable()


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
