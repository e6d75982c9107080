"""An engine with async scheduling over a scripted model: the device's part without a device."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scripted import ScriptedRunner

from holdfast.core.step_plan import PassResult, StepPlan
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler


class Deferred(ScriptedRunner):
    """A scripted asynchronous runner that can raise when a plan is started or its results are read."""

    breaks_at: tuple[str, int] | None = None
    error: BaseException = RuntimeError("a cosmic ray")

    def start(self, plan: StepPlan) -> Callable[[], list[PassResult]]:
        if self.breaks_at == ("start", self.num_started):
            self.breaks_at = None
            raise self.error
        number, wait = self.num_started, super().start(plan)

        def read() -> list[PassResult]:
            results = wait()
            if self.breaks_at == ("wait", number):
                raise self.error
            return results

        return read

    def run(self, plan: StepPlan) -> list[PassResult]:
        assert plan in self._unread, "a plan was run where it should be started"
        return super().run(plan)


def deferred_engine(llm: LLM, mode: Any, **changes: Any) -> Engine:
    """An engine like this LLM's. With async_scheduling in changes it can be turned off."""
    config = SchedulerConfig(4, 64, 8, mode, tuple(range(1, 65)), speculation="off", async_scheduling=True)
    scheduler = Scheduler(replace(config, **changes), PagePool(64, 4))
    old = llm.engine
    return Engine(scheduler, Deferred(4, 0.2, 1), old.tokenizer, old.limits, old.grammars, old.receipts)
