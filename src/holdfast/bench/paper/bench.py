"""`bench paper`: throughput by share of deterministic traffic, online latency, rollbacks by window.

Everything runs in this process, on random weights of one shape, without HTTP. The same requests run
in every mode. A part that fails is noted, and the next one runs.
"""

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from holdfast import LLM
from holdfast.bench.determinism.engine_pair import EnginePair, open_plain_engine
from holdfast.bench.machine import device_machine_name, triton_version
from holdfast.bench.paper import published
from holdfast.bench.paper.online import Arrival, run_online
from holdfast.bench.paper.report import LatencyPoint, PaperReport, RollbackPoint, ThroughputPoint
from holdfast.bench.paper.settings import WORKLOADS, PaperSettings, Workload
from holdfast.bench.percentiles import percentile
from holdfast.bench.report import write_report
from holdfast.bench.tiny import dummy_model, shape_config
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import dtype_name
from holdfast.engine.engine import Engine
from holdfast.errors import EngineStopped
from holdfast.scheduler.policy import DeterminismMode
from holdfast.worker.kv_store import page_bytes

REPORT_FILE = "bench-paper.json"
MODES: tuple[DeterminismMode, ...] = ("auto", "verify")
# Each with its percentage of deterministic requests.
_LATENCY_MODES: tuple[tuple[DeterminismMode, int], ...] = (("off", 0), ("auto", 100), ("verify", 100))

_PAGE_SPARE = 128  # positions of a request's last page, and of one more page for a spot check

Request = tuple[list[int], int]  # a prompt and the length of its answer


class PaperBench:
    """One run: its settings, its report, and the engines."""

    def __init__(self, settings: PaperSettings, folder: Path | None, log: Callable[[str], None]) -> None:
        self._settings = settings
        self._log = log
        self._path = None if folder is None else folder / REPORT_FILE
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.report = PaperReport(
            device_machine_name(),
            torch.__version__,
            triton_version(),
            asdict(settings),
            {
                "source": published.SOURCE,
                "llm_42": published.LLM_42,
                "sglang": published.SGLANG,
                "llm_42_rolled_back": published.LLM_42_ROLLED_BACK,
            },
        )
        self._started = time.perf_counter()

    def run(self, parts: Sequence[str]) -> PaperReport:
        settings = self._settings
        self._note(f"opening {settings.model}")
        self._llm = _open_llm(settings)
        self._pair = EnginePair(self._llm.engine, open_plain_engine(self._llm.engine))
        self._vocab_size = self._pair.exact.limits.vocab_size
        work = {"throughput": self._throughput, "latency": self._latency, "rollbacks": self._rollbacks}
        for part in parts:
            started = time.perf_counter()
            try:
                work[part]()
            except Exception as error:
                self.report.errors[part] = f"{type(error).__name__}: {error}"
                self._note(f"{part} failed: {traceback.format_exc()}")
            self.report.seconds[part] = time.perf_counter() - started
            self._save()
        return self.report

    # Throughput by share of deterministic requests

    def _throughput(self) -> None:
        for name, workload in WORKLOADS.items():
            requests = self._draw(workload, self._settings.num_requests[name])
            self._generate(self._engine("auto"), requests, 100)  # captures what is captured on first use
            off = self._generate(self._engine("off", plain=True), requests, 0)
            self.report.off[name] = off[0]
            self._note(f"{name}: {off[0]:,.0f} tok/s with the guarantee off")
            for mode in MODES:
                for share in self._settings.shares:
                    self._throughput_point(name, mode, share, requests)

    def _throughput_point(
        self, workload: str, mode: DeterminismMode, share: int, requests: Sequence[Request]
    ) -> None:
        speed, results, seconds = self._generate(self._engine(mode), requests, share)
        deterministic = [one for one in results if one.determinism != "none"]
        point = ThroughputPoint(
            workload,
            mode,
            share,
            speed,
            speed / self.report.off[workload],
            sum(one.stats.candidates for one in deterministic),
            sum(one.stats.rolled_back for one in deterministic),
            seconds,
        )
        self.report.throughput.append(point)
        self._note(f"{workload}, {mode}, {share} %: {speed:,.0f} tok/s, {point.of_off:.3f} of off")
        self._save()

    def _generate(
        self, engine: Engine, requests: Sequence[Request], share: int
    ) -> tuple[float, list[Result], float]:
        """Output tok/s of all requests at once, this percentage of them deterministic."""
        llm = self._llm
        llm.engine = engine
        params = [_params(count, place=place, share=share) for place, (_, count) in enumerate(requests)]
        started = time.perf_counter()
        results = llm.generate([prompt for prompt, _ in requests], params, use_tqdm=False)
        seconds = time.perf_counter() - started
        for result, one in zip(results, params, strict=True):
            if result.error is not None or len(result.token_ids) != one.max_tokens:
                raise EngineStopped(f"a request of the benchmark failed: {result.error}")
        return sum(len(one.token_ids) for one in results) / seconds, results, seconds

    # Latency of requests that arrive one by one

    def _latency(self) -> None:
        for rate in self._settings.rates:
            for mode, share in _LATENCY_MODES:
                self._latency_point("sharegpt", mode, share, rate)

    def _latency_point(self, workload: str, mode: DeterminismMode, share: int, rate: float) -> None:
        settings, rng = self._settings, random.Random(int(rate * 1000))
        requests = self._draw(WORKLOADS[workload], max(2, int(rate * settings.latency_seconds)))
        arrivals, now = [], 0.0
        for place, (prompt, count) in enumerate(requests):
            now += rng.expovariate(rate)
            arrivals.append(Arrival(now, prompt, _params(count, place=place, share=share)))
        run = run_online(self._engine(mode, plain=mode == "off"), arrivals)
        first, between = sorted(run.first_token), sorted(run.between_tokens)
        point = LatencyPoint(
            workload,
            mode,
            share,
            rate,
            len(arrivals),
            [percentile(first, percent) for percent in range(101)],
            [percentile(between, percent) for percent in range(101)],
            percentile(between, 99.9),
            bool(run.num_waiting_at_end),
        )
        self.report.latency.append(point)
        self._note(
            f"{workload}, {rate:g} requests/s, {mode}, {share} %: first token p50 {1e3 * point.first_token[50]:.0f} ms, "
            f"between tokens p50 {1e3 * point.between_tokens[50]:.1f} ms"
        )
        self._save()

    # Rolled-back tokens by window and group

    def _rollbacks(self) -> None:
        for group in self._settings.groups:
            for window in self._settings.windows:
                for plain in (True, False):
                    self._rollback_point(window, group, plain)

    def _rollback_point(self, window: int, group: int, plain: bool) -> None:
        settings = self._settings
        rng = random.Random(group)
        count, length = settings.rollback_tokens, settings.scaled_len(settings.rollback_prompt_len)
        requests = [
            (rng.choices(range(self._vocab_size), k=length), settings.scaled_len(count))
            for _ in range(max(2, group))
        ]
        engine = self._engine("verify", plain=plain)
        schedule = replace(engine.scheduler.config, max_window=window, max_num_seqs=group)
        speed, results, _ = self._generate(engine.restarted(schedule), requests, 100)
        stats = [one.stats for one in results]
        num_tokens = sum(len(one.token_ids) for one in results)
        num_windows = sum(one.windows for one in stats)
        point = RollbackPoint(
            window,
            group,
            plain,
            sum(one.candidates for one in stats) / num_windows if num_windows else 0.0,
            sum(one.rolled_back for one in stats) / num_tokens,
            sum(one.rollbacks for one in stats),
            num_tokens,
            speed,
        )
        self.report.rollbacks.append(point)
        self._note(
            f"window {window}, group {group}, {'plain' if plain else 'canonical'} candidates: "
            f"{100 * point.rolled_back_share:.1f} % rolled back, mean window {point.mean_window:.1f}"
        )
        self._save()

    def _engine(self, mode: DeterminismMode, *, plain: bool = False) -> Engine:
        return self._pair.engine(mode, plain=plain)

    def _draw(self, workload: Workload, count: int) -> list[Request]:
        rng = random.Random(workload.name)
        lengths = workload.draw(rng, count, self._settings.divisor)
        return [(rng.choices(range(self._vocab_size), k=length), output) for length, output in lengths]

    def _note(self, text: str) -> None:
        self._log(f"[{time.perf_counter() - self._started:7.1f} s] {text}")

    def _save(self) -> None:
        if self._path is not None:
            write_report(self.report, self._path)


def _open_llm(settings: PaperSettings) -> LLM:
    config = shape_config(settings.model)
    dtype = getattr(torch, dtype_name(settings.dtype, None))
    positions = settings.num_positions + settings.max_len + (settings.max_streams + 1) * _PAGE_SPARE
    with dummy_model(settings.model) as model:
        return LLM(
            model,
            load_format="dummy",
            certification="startup",
            dtype=settings.dtype,
            max_num_seqs=settings.max_streams,
            max_model_len=min(settings.max_len, config.max_position_embeddings),
            kv_memory=positions * page_bytes(config, dtype, 1),
        )


def _params(num_tokens: int, *, place: int, share: int) -> SamplingParams:
    """Greedy, of exactly so many tokens. The requests that are deterministic at one share are so at
    all larger ones."""
    is_deterministic = random.Random(place).random() * 100 < share
    return SamplingParams(
        max_tokens=num_tokens, temperature=0, ignore_eos=True, deterministic=is_deterministic
    )
