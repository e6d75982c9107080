"""The same load without a server: the offline engine in its own process, with the same concurrency.

A client that disconnects becomes a request that is aborted after the same number of deltas.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.bench.serve.load import ArrivalConfig
from holdfast.bench.serve.workload import LoadRequest, TokenRange, Workload, WorkloadConfig
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import EngineStopped

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


def measure_offline(
    engine_options: Mapping[str, Any],
    config: WorkloadConfig,
    corpus_ids: Sequence[int],
    arrivals: ArrivalConfig,
) -> float:
    """Tokens per second of a closed loop. engine_options are those of `LLM`."""
    settings = {
        "engine": dict(engine_options),
        "workload": asdict(config),
        "corpus_ids": list(corpus_ids),
        "arrivals": asdict(arrivals),
    }
    command = [sys.executable, "-m", "holdfast.bench.serve.offline"]
    done = subprocess.run(command, input=json.dumps(settings), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineStopped(f"the offline engine failed: {' '.join(done.stderr.split())[-500:]}")
    return float(json.loads(done.stdout)["tokens_per_second"])


@dataclass
class _Running:
    """A request in the engine."""

    request: LoadRequest
    started: float
    num_deltas: int = 0

    def disconnects(self, now: float) -> bool:
        disconnect = self.request.disconnect
        if disconnect is None:
            return False
        if self.num_deltas:
            return self.num_deltas >= disconnect.after_deltas
        return disconnect.after_deltas == 0 and now - self.started >= disconnect.after_seconds


class OfflineLoad:
    """A closed loop on an engine in this process."""

    def __init__(self, engine: "Engine", workload: Workload, arrivals: ArrivalConfig) -> None:
        assert arrivals.concurrency is not None, "an arrival rate says nothing about speed"
        self._engine, self._workload, self._arrivals = engine, workload, arrivals
        self._running: dict[int, _Running] = {}
        self.num_tokens = 0
        self.num_requests = 0

    def run(self) -> float:
        """Tokens per second. The pool prompts are answered first, to warm up."""
        for request in self._workload.pool:
            self._submit(request)
        while self._running:
            self._step()
        self.num_tokens = self.num_requests = 0
        started = time.perf_counter()
        while self._fill(time.perf_counter() - started):
            self._step()
        return self.num_tokens / (time.perf_counter() - started)

    def _fill(self, seconds: float) -> bool:
        """Submit requests up to the concurrency. False once the load is over."""
        arrivals = self._arrivals
        if arrivals.duration is not None and seconds >= arrivals.duration:
            return False
        while len(self._running) < (arrivals.concurrency or 0):
            if arrivals.num_requests is not None and self.num_requests >= arrivals.num_requests:
                break
            self._submit(self._workload.draw())
        return bool(self._running)

    def _submit(self, one: LoadRequest) -> None:
        params = SamplingParams(
            max_tokens=one.max_tokens,
            temperature=one.temperature,
            seed=one.seed,
            ignore_eos=True,
            deterministic=one.deterministic,
        )
        request = self._engine.prepare(one.prompt_ids, params)
        self._engine.submit(request)
        self._running[request.request_id] = _Running(one, time.perf_counter())
        self.num_requests += 1

    def _step(self) -> None:
        for update in self._engine.step():
            running = self._running[update.request_id]
            self.num_tokens += len(update.delta.token_ids)
            running.num_deltas += bool(update.delta.text)
            if update.result is not None:
                del self._running[update.request_id]
                if update.result.error is not None:
                    raise EngineStopped(update.result.error)
        now = time.perf_counter()
        for request_id in [number for number, one in self._running.items() if one.disconnects(now)]:
            self._engine.abort(request_id)
            del self._running[request_id]


def main() -> None:
    """The child process: settings come as JSON on stdin, the result goes as JSON to stdout."""
    from holdfast.engine.llm import LLM

    settings = json.load(sys.stdin)
    config = settings["workload"]
    for name in ("prompt_tokens", "output_tokens"):
        config[name] = TokenRange(**config[name])
    workload = Workload(WorkloadConfig(**config), settings["corpus_ids"])
    load = OfflineLoad(
        LLM(**{"certification": "startup", **settings["engine"]}).engine,
        workload,
        ArrivalConfig(**settings["arrivals"]),
    )
    print(json.dumps({"tokens_per_second": load.run()}))


if __name__ == "__main__":
    main()
