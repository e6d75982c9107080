"""The stress test matrix over several processes.

The runs of an engine are split into parts, each a block of run numbers over all cells. A process
takes part after part and keeps the engines it has opened. A cell's results from all processes are
counted together, so answers are also compared between processes.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache

from holdfast.bench.determinism.matrix import (
    TINY,
    CellResult,
    MatrixCell,
    StressSettings,
    judge,
    judge_without_guarantee,
    products_disagree,
    run_model,
    run_tiny,
)
from holdfast.bench.machine import machine_name
from holdfast.core.results import Stats
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.llm import LLM
from holdfast.models.locate import locate
from holdfast.numerics.recipe import KernelBackend

_MODEL_RUNS_PER_PART = 1
_TINY_RUNS_PER_PART = 6


@dataclass(frozen=True)
class StressJob:
    """A part of a long stress test: some runs of every cell of one engine.

    Without tiny_kernels it is the engine of `config`; with them the tiny model in `config.dtype`.
    """

    config: EngineConfig
    tiny_kernels: KernelBackend | None
    first_run: int
    num_runs: int
    seed: int

    @property
    def name(self) -> str:
        model = (
            locate(self.config.model).name
            if self.tiny_kernels is None
            else f"tiny {self.tiny_kernels} {self.config.dtype}"
        )
        return f"{model}, runs {self.first_run} to {self.first_run + self.num_runs - 1}"


@dataclass
class StressReport:
    """What `--save` writes: counts over all cells, and the cells one by one."""

    machine: str
    seed: int
    runs: int = 0
    runs_without_guarantee: int = 0
    cells: list[dict[str, object]] = field(default_factory=list)
    is_good: bool = True


def plan_jobs(
    config: EngineConfig, settings: StressSettings, model_runs: int | None = None
) -> list[StressJob]:
    """The parts, the slowest engines first. model_runs is as for `run_matrix`."""
    num_runs, seed = settings.num_runs, settings.seed
    blocks = _blocks(num_runs if model_runs is None else model_runs, _MODEL_RUNS_PER_PART)
    jobs = [StressJob(config, None, first, count, seed) for first, count in blocks]
    for kernels, dtype in reversed(TINY):
        small = EngineConfig(dtype=dtype, num_threads=config.num_threads)
        for first, count in _blocks(num_runs, _TINY_RUNS_PER_PART):
            jobs.append(StressJob(small, kernels, first, count, seed))
    return jobs


def _blocks(total: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, total, size):
        yield first, min(size, total - first)


def run_jobs(jobs: Sequence[StressJob], num_processes: int, log: Callable[[str], None]) -> list[CellResult]:
    """Run all parts. The cells come in the order of the jobs."""
    parts: dict[StressJob, list[CellResult]] = {}
    context = multiprocessing.get_context("spawn")  # a forked child cannot use OpenMP
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        started: dict[Future[list[CellResult]], StressJob] = {pool.submit(run_job, job): job for job in jobs}
        for done in as_completed(started):
            job = started[done]
            parts[job] = done.result()
            log(f"{len(parts)} of {len(jobs)} parts: {job.name}")
    return merge_parts([parts[job] for job in jobs])


def run_job(job: StressJob) -> list[CellResult]:
    """Run one part in this process."""
    settings = StressSettings(job.num_runs, job.seed, lambda text: None, job.first_run)
    if job.tiny_kernels is not None:
        return list(run_tiny(job.tiny_kernels, job.config.dtype, job.config.num_threads, settings))
    return list(run_model(_open(job.config), locate(job.config.model).name, settings))


@cache
def _open(config: EngineConfig) -> Engine:
    return LLM.from_config(config).engine


def merge_parts(parts: Sequence[Sequence[CellResult]]) -> list[CellResult]:
    """One result for each cell, judged over all its runs."""
    merged: dict[MatrixCell, CellResult] = {}
    for one in (result for part in parts for result in part):
        known = merged.setdefault(one.cell, CellResult(one.cell, None, one.status, one.remark))
        if one.summary is not None:
            if known.summary is None:
                merged[one.cell] = one
            else:
                known.summary.merge(one.summary)
    judged = [
        one if one.summary is None else CellResult(one.cell, one.summary, *judge(one.cell, one.summary))
        for one in merged.values()
    ]
    promised = [one for one in judged if one.cell.guarantee]
    off = [one for one in judged if not one.cell.guarantee]
    return [*promised, *(judge_without_guarantee(off, products_disagree) if off else ())]


def make_report(results: Sequence[CellResult], seed: int) -> StressReport:
    report = StressReport(machine_name(), seed)
    for one in results:
        summary = one.summary
        runs = 0 if summary is None else summary.num_runs
        if one.cell.guarantee:
            report.runs += runs
        else:
            report.runs_without_guarantee += runs
        report.is_good &= one.status != "failed"
        stats = Stats() if summary is None else summary.stats
        report.cells.append(
            {
                **asdict(one.cell),
                "status": one.status,
                "remark": one.remark,
                "runs": runs,
                "distinct": 0 if summary is None else summary.num_distinct,
                "checks": 0 if summary is None else summary.num_checks,
                "revocations": 0 if summary is None else summary.num_revocations,
                "rolled_back": stats.rolled_back,
                "preemptions": stats.preemptions,
            }
        )
    return report
