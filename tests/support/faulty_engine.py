"""An engine process with injected faults: wrong candidates, passes that raise, slow steps.

wrong_candidates   chance of a wrong candidate        slow   seconds added to each step
max_file           largest file size in bytes, as on a full disk
control            a file with more settings, which may change while the engine runs: slow, and
                   raise_once, a number; the next pass raises whenever it changes, or fails as fault says
fail_at            pairs of a seed and a position: the first pass that computes this position of a request of
                   this seed fails as fault says, once in the life of the server
fault              kill, exit, crash (a segmentation fault), stop, raise, memory, or device: this pass and all later
                   ones of the process raise
poison_seed        a pass with a request of this seed fails as fault says, every time
"""

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from holdfast.bench.faults import FaultyProposer
from holdfast.core.step_plan import PassResult, StepPlan
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine, PlanRunner
from holdfast.engine.start.builder import build
from holdfast.engine.status import ShowProgress
from holdfast.server.ipc.host_main import ignore_signals, serve


def fail(how: str) -> None:
    """Fail in the middle of a pass."""
    if how in ("raise", "device"):
        raise RuntimeError("an internal secret: /etc/passwd")
    if how == "memory":
        limit = psutil.Process().memory_info().vms + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        bytearray(1 << 40)
    if how == "exit":
        os._exit(3)
    numbers = {"kill": signal.SIGKILL, "crash": signal.SIGSEGV, "stop": signal.SIGSTOP}
    os.kill(os.getpid(), numbers[how])


class FaultyRunner:
    """Runs plans with the configured faults."""

    def __init__(self, runner: PlanRunner, settings: dict[str, Any]) -> None:
        self._runner = runner
        self._settings = settings
        self._is_broken = False
        self._raised: int | None = self._now.get("raise_once")

    @property
    def _now(self) -> dict[str, Any]:
        control = self._settings.get("control")
        return {**self._settings, **json.loads(Path(control).read_text())} if control else self._settings

    def run(self, plan: StepPlan) -> Sequence[PassResult]:
        now = self._now
        raised, self._raised = self._raised, now.get("raise_once", self._raised)
        seeds = {span.sampling.seed for one in plan.passes for span in one.spans}
        if (
            raised != self._raised
            or now.get("poison_seed") in seeds
            or self._is_due(plan, now.get("fail_at", ()))
        ):
            self._is_broken = now.get("fault") == "device"
            fail(now.get("fault", "raise"))
        if self._is_broken:
            fail("device")
        time.sleep(now.get("slow", 0.0))
        return self._runner.run(plan)

    def _is_due(self, plan: StepPlan, places: Sequence[tuple[int, int]]) -> bool:
        """Whether a place is computed for the first time. A file remembers it over restarts."""
        due = [
            Path(f"{self._settings['control']}.{seed}.{position}")
            for seed, position in places
            for one in plan.passes
            for span in one.spans
            if span.sampling.seed == seed and span.start <= position < span.stop
        ]
        new = [one for one in due if not one.exists()]
        for one in new:
            one.touch()
        return bool(new)


def build_faulty(config: EngineConfig, show: ShowProgress) -> Engine:
    settings = json.loads(os.environ.get("HOLDFAST_TEST_ENGINE", "{}"))
    if "max_file" in settings:
        resource.setrlimit(resource.RLIMIT_FSIZE, (settings["max_file"],) * 2)
    engine = build(config, show)
    if settings.get("wrong_candidates"):
        ends = tuple(engine.limits.eos_ids)
        engine.runner = FaultyProposer(
            engine.runner, engine.limits.vocab_size, settings["wrong_candidates"], ends=ends
        )
    engine.runner = FaultyRunner(engine.runner, settings)
    return engine


if __name__ == "__main__":
    ignore_signals()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), build_faulty))
