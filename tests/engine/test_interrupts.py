"""An interrupt at any line of a step leaves the engine usable, and no call waits for ever."""

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from scripted import ScriptedRunner, reference

from holdfast import SamplingParams
from holdfast.core.step_plan import PassResult, StepPlan
from holdfast.engine.engine import Engine
from holdfast.engine.llm import LLM
from holdfast.errors import EngineStopped
from support.deferred_engine import Deferred, deferred_engine
from support.interrupts import Interrupted, interrupt_at

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, deterministic=True)
FIRST, OTHER = [1, 2, 3], [4, 5]
# Without input_processor.py: its lock is safe from signals, but not from a trace function, which can
# raise between the end of a with block and the lock's release.
EVERYWHERE = (
    *("engine/engine.py", "engine/shared_engine.py", "engine/llm.py"),
    "engine/answer_output.py",
    *("scheduler/", "kv_cache/"),
)
STEPPED = ("engine/engine.py", "engine/shared_engine.py")


class Forgetful(Deferred):
    """Results of a plan that the engine has lost are never read."""

    engine: Engine

    def start(self, plan: StepPlan) -> Callable[[], list[PassResult]]:
        kept = [known for known, _ in self.engine._in_flight]
        self._unread = deque(one for one in self._unread if one in kept)
        return super().start(plan)

    def run(self, plan: StepPlan) -> list[PassResult]:
        is_async = self.engine.scheduler.config.async_scheduling
        return super().run(plan) if is_async else ScriptedRunner.run(self, plan)


def scripted_llm(llm: LLM, mode: str, **changes: Any) -> LLM:
    twin = copy.copy(llm)
    twin.engine = engine = deferred_engine(llm, mode, **changes)
    engine.runner = Forgetful(4, 0.2, 1)
    engine.runner.engine = engine
    return twin


def require_usable(llm: LLM) -> None:
    """All calls are over, no page is held, and new answers are right."""
    llm.engine.scheduler.prefix_cache.clear()
    results = llm.generate([FIRST, OTHER], PARAMS)
    assert [result.token_ids for result in results] == [
        reference(tuple(prompt), PARAMS) for prompt in (FIRST, OTHER)
    ]
    assert not llm.engine.has_work and llm.engine.scheduler.pool.num_held == 0
    llm.engine.check()


def interrupt_everywhere(llm: LLM, step: int, *paths: str, again_after: int | None = None) -> int:
    """Interrupt `generate` at every step-th line until it ends without one. The number of times."""
    line = 1
    while True:
        beside = llm.stream(OTHER, PARAMS)
        next(beside)
        is_over = True
        try:
            with interrupt_at(line, *paths, again_after=again_after):
                llm.generate([FIRST, FIRST], PARAMS)
        except Interrupted:
            is_over = False
        read_to_its_end(beside)
        beside.close()
        require_usable(llm)
        if is_over:
            return line // step
        line += step


def read_to_its_end(stream: Any) -> None:
    """A stream beside an interrupted call goes on, or raises."""
    with suppress(EngineStopped):
        list(stream)
        assert stream.result.token_ids == reference(tuple(OTHER), PARAMS)


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_interrupt_at_any_line_of_a_step_leaves_a_usable_engine(auto_llm: LLM, mode: str) -> None:
    assert interrupt_everywhere(scripted_llm(auto_llm, mode), 29, *STEPPED) > 10


def test_second_interrupt_during_the_recovery_leaves_a_usable_engine(auto_llm: LLM) -> None:
    assert interrupt_everywhere(scripted_llm(auto_llm, "auto"), 61, *STEPPED, again_after=7) > 4


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto", "verify"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("again_after", [None, 40])
def test_interrupt_at_any_line_of_engine_and_scheduler_leaves_a_usable_engine(
    auto_llm: LLM, mode: str, is_async: bool, again_after: int | None
) -> None:
    llm = scripted_llm(auto_llm, mode, async_scheduling=is_async)
    assert interrupt_everywhere(llm, 7, *EVERYWHERE, again_after=again_after) > 100
