"""The same load without a server: the offline engine, in a process of its own, with as many requests at once.

Clients that leave are requests that are aborted, after as many pieces of text.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.bench.serve.load import Pace
from holdfast.bench.serve.workload import Job, Jobs, Shape, Span
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import EngineStopped

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


def measure_offline(
    engine_options: Mapping[str, Any], shape: Shape, corpus_ids: Sequence[int], pace: Pace
) -> float:
    """Tokens a second of a closed loop. engine_options are those of `LLM`."""
    asked = {
        "engine": dict(engine_options),
        "shape": asdict(shape),
        "corpus_ids": list(corpus_ids),
        "pace": asdict(pace),
    }
    command = [sys.executable, "-m", "holdfast.bench.serve.offline"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineStopped(f"the offline engine failed: {' '.join(done.stderr.split())[-500:]}")
    return float(json.loads(done.stdout)["tokens_per_second"])


@dataclass
class _Running:
    """A request in the engine."""

    job: Job
    started: float
    num_pieces: int = 0

    def leaves(self, now: float) -> bool:
        leaving = self.job.leaving
        if leaving is None:
            return False
        if self.num_pieces:
            return self.num_pieces >= leaving.after_pieces
        return leaving.after_pieces == 0 and now - self.started >= leaving.after_seconds


class OfflineLoad:
    """A closed loop on an engine in this process."""

    def __init__(self, engine: "Engine", jobs: Jobs, pace: Pace) -> None:
        assert pace.concurrency is not None, "what arrives at a rate says nothing about speed"
        self._engine, self._jobs, self._pace = engine, jobs, pace
        self._running: dict[int, _Running] = {}
        self.num_tokens = 0
        self.num_asked = 0

    def run(self) -> float:
        """Tokens a second: the pool is answered once to warm up, then the time counts."""
        for job in self._jobs.pool:
            self._submit(job)
        while self._running:
            self._step()
        self.num_tokens = self.num_asked = 0
        started = time.perf_counter()
        while self._fill(time.perf_counter() - started):
            self._step()
        return self.num_tokens / (time.perf_counter() - started)

    def _fill(self, seconds: float) -> bool:
        """Ask until as many run as may; false once the load is over."""
        pace = self._pace
        if pace.duration is not None and seconds >= pace.duration:
            return False
        while len(self._running) < (pace.concurrency or 0):
            if pace.num_requests is not None and self.num_asked >= pace.num_requests:
                break
            self._submit(self._jobs.draw())
        return bool(self._running)

    def _submit(self, job: Job) -> None:
        params = SamplingParams(
            max_tokens=job.max_tokens,
            temperature=job.temperature,
            seed=job.seed,
            ignore_eos=True,
            deterministic=job.deterministic,
        )
        request = self._engine.prepare(job.prompt_ids, params)
        self._engine.submit(request)
        self._running[request.request_id] = _Running(job, time.perf_counter())
        self.num_asked += 1

    def _step(self) -> None:
        for update in self._engine.step():
            running = self._running[update.request_id]
            self.num_tokens += len(update.delta.token_ids)
            running.num_pieces += bool(update.delta.text)
            if update.result is not None:
                del self._running[update.request_id]
                if update.result.error is not None:
                    raise EngineStopped(update.result.error)
        now = time.perf_counter()
        for request_id in [number for number, one in self._running.items() if one.leaves(now)]:
            self._engine.abort(request_id)
            del self._running[request_id]


def main() -> None:
    """The child: what is asked comes as JSON, and so does the answer."""
    from holdfast.engine.llm import LLM

    asked = json.load(sys.stdin)
    shape = asked["shape"]
    for name in ("prompt_tokens", "output_tokens"):
        shape[name] = Span(**shape[name])
    jobs = Jobs(Shape(**shape), asked["corpus_ids"])
    load = OfflineLoad(LLM(**asked["engine"]).engine, jobs, Pace(**asked["pace"]))
    print(json.dumps({"tokens_per_second": load.run()}))


if __name__ == "__main__":
    main()
