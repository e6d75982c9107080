"""An engine process that misbehaves as its settings say: lies, raises in a pass, is slow, dies.

lies           chance of a wrong candidate                      slow         seconds added to each step
raise_at       raise in every pass with this token in it        die_at       exit when a pass has this token in it
raise_always   raise in every pass                              max_file     bytes after which a disk is full
control        a file with more settings, which may change while the engine runs: slow, and
               raise_once, a number that makes the next pass raise whenever it becomes another
"""

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.bench.determinism.fault_injection import FaultyProposer
from holdfast.core.step_plan import PassResult, StepPlan
from holdfast.engine.builder import build
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine, PlanRunner
from holdfast.engine.status import ShowProgress
from holdfast.server.ipc.engine_process import ignore_signals, serve


class OddRunner:
    """Runs plans, with the faults asked for."""

    def __init__(self, runner: PlanRunner, settings: dict[str, Any]) -> None:
        self._runner = runner
        self._settings = settings
        self._raised: int | None = self._now.get("raise_once")

    @property
    def _now(self) -> dict[str, Any]:
        control = self._settings.get("control")
        return {**self._settings, **json.loads(Path(control).read_text())} if control else self._settings

    def run(self, plan: StepPlan) -> Sequence[PassResult]:
        now = self._now
        tokens = {token for one in plan.passes for span in one.spans for token in span.token_ids}
        if now.get("die_at") in tokens:
            os._exit(9)
        raised, self._raised = self._raised, now.get("raise_once", self._raised)
        if now.get("raise_always") or now.get("raise_at") in tokens or raised != self._raised:
            raise RuntimeError("a secret of the inside: /etc/passwd")
        time.sleep(now.get("slow", 0.0))
        return self._runner.run(plan)


def build_odd(config: EngineConfig, show: ShowProgress) -> Engine:
    settings = json.loads(os.environ.get("HOLDFAST_TEST_ENGINE", "{}"))
    if "max_file" in settings:
        resource.setrlimit(resource.RLIMIT_FSIZE, (settings["max_file"],) * 2)
    engine = build(config, show)
    if settings.get("lies"):
        ends = tuple(engine.limits.eos_ids)
        engine.runner = FaultyProposer(engine.runner, engine.limits.vocab_size, settings["lies"], ends=ends)
    engine.runner = OddRunner(engine.runner, settings)
    return engine


if __name__ == "__main__":
    ignore_signals()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), build_odd))
